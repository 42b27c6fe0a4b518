"""The run script: what its variables set, several ranks, and a run that is resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorded_models import TARGET
from tests.training import runs
from training.checkpoint import TRACKER
from training.dataset import write_dataset
from training.watch import METRICS

ROOT = Path(__file__).parents[2]
CONFIG = """
target = "{target}"
data = "{data}"
output = "elsewhere"
mask_token_id = 250
layers = 1
taps = 3
block_size = 4
gru_hidden_dim = 8
emb_dim = 4
row_length = 64
rows = 1
anchors = 4
steps = 9
log_interval = 2
"""


def run(folder: Path, *settings: str, **variables: str) -> None:
    """training/run.sh in a plain environment, from another folder."""
    write_dataset(folder / "data", runs.documents(), {})
    config = folder / "tiny.toml"
    config.write_text(CONFIG.format(target=TARGET, data=folder / "data"))
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [str(ROOT / "training/run.sh"), str(config), *settings],
        cwd=folder,
        env=plain | {"PYTHON": sys.executable, "OUTPUT_ROOT": str(folder)} | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
def test_variables_name_and_size_a_run(tmp_path: Path, processes: str) -> None:
    """Ranks that all write, or one that starts anew beside the others, break the run's files."""
    variables = {"RUN_NAME": 'a "demo" #1', "NUM_TRAIN_STEPS": "4", "SAVE_INTERVAL": "2"}
    variables |= {"MAX_CHECKPOINTS": "1", "SAVE_OPTIMIZER": "true", "PROCESSES": processes}
    run(tmp_path, "parallel=fsdp", **variables, OMP_NUM_THREADS="1")  # of one rank: as without
    folder = tmp_path / 'a "demo" #1'
    assert (folder / TRACKER).read_text() == "4\n"
    assert [p.name for p in folder.glob("iter_*")] == ["iter_0000004"]
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert (folder / "export" / "model.safetensors").is_file()
    run(tmp_path, "lr=6e-4", **variables, OMP_NUM_THREADS="1")  # nothing left to do
    assert len((folder / METRICS).read_text().splitlines()) == 2
