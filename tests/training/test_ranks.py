"""Two ranks make the step that one makes with twice the micro-batches."""

import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.training import runs

ROOT = Path(__file__).parents[2]
PYTHONPATH = ":".join(str(ROOT / part) for part in ("", "protos/gen", "kernels"))
RANK = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from tests.training import runs
from training.ranks import join
from training.session import open_session

torch.set_num_threads(1)
out, ranks = Path(sys.argv[1]), join(torch.device("cpu"))
config = runs.config(out / str(ranks.rank))
documents = runs.documents()
session = open_session(config, lambda _: None, documents=documents, ranks=ranks)
for _ in range(3):
    session.trainer.train_step()
save_file(dict(session.trainer.masters), out / f"{ranks.rank}.safetensors")
"""


def test_two_ranks_equal_one_with_accumulation(tmp_path: Path) -> None:
    """Sums divided once too often make learning depend on the number of GPUs (verl-SpeCo #29)."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path)],
            cwd=ROOT,
            env={
                **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
                **{"MASTER_PORT": port, "PATH": "", "PYTHONPATH": PYTHONPATH},
                **{"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
            },
        )
        for rank in range(2)
    ]
    assert [p.wait(200) for p in processes] == [0, 0]
    whole = runs.session(tmp_path / "one", accumulation=2)
    for _ in range(3):
        whole.trainer.train_step()
    ranks = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    for name, weight in whole.trainer.masters.items():
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        torch.testing.assert_close(ranks[0][name], weight, atol=2e-5, rtol=1e-4)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
