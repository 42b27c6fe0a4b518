"""Two ranks make the step that one makes with twice the micro-batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from serving.option_type import OptionError
from serving.unused_port import unused_port
from tests.training import runs
from training.checkpoint import load

ROOT = Path(__file__).parents[2]
PYTHONPATH = ":".join(str(ROOT / part) for part in ("", "protos/gen", "kernels"))
RANK = """
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from tests.training import runs
from training.ranks import join, own_device
from training.opening import open_session

torch.set_num_threads(1)
device = own_device(sys.argv[3])
out, ranks = Path(sys.argv[1]), join(torch.device(device))
for until in (2, 4):  # interrupted, then gone on with
    config = runs.config(out / "run", parallel=sys.argv[2], device=device)
    ranks.least(0)
    session = open_session(config, lambda _: None, documents=runs.documents(), ranks=ranks)
    session.run(lambda _: None, until=until)
whole = session.trainer.whole_masters()
held = {name: w for name, w in session.trainer.masters.items()}
save_file(whole, out / f"{ranks.rank}.safetensors")
save_file(held, out / f"held-{ranks.rank}.safetensors")
"""


TWO_GPUS = [
    pytest.mark.gpu,
    runs.COMPILES,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
@pytest.mark.parametrize("parallel", ["replicated", "fsdp"])
def test_two_ranks_equal_one_with_accumulation(tmp_path: Path, parallel: str, device: str) -> None:
    """Sums divided once too often make learning depend on the number of GPUs (verl-SpeCo #29).

    With fsdp each rank holds half of everything, and the checkpoint is that of one rank.
    """
    port = str(unused_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), parallel, device],
            cwd=ROOT,
            env={
                **(os.environ if device == "cuda" else {"PATH": ""}),
                **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
                **{"MASTER_PORT": port, "PYTHONPATH": PYTHONPATH, "LOCAL_RANK": str(rank)},
                **{"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
            },
        )
        for rank in range(2)
    ]
    assert [p.wait(200) for p in processes] == [0, 0]
    one = runs.session(tmp_path / "one", accumulation=2, device=device)
    one.run(lambda _: None, until=4)
    ranks = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    held = [load_file(tmp_path / f"held-{rank}.safetensors") for rank in range(2)]
    saved, alone = load(tmp_path / "run"), load(tmp_path / "one")
    assert saved and alone
    atol = 2e-5 if device == "cpu" else 1e-3  # float32 sums there vary in their order
    for name, weight in one.trainer.masters.items():
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        torch.testing.assert_close(ranks[0][name], weight.cpu(), atol=atol, rtol=1e-4)
        assert torch.equal(saved.masters[name], ranks[0][name]), name
        count = sum(h[name].numel() for h in held)
        assert count == weight.numel() * (2 if parallel == "replicated" else 1), name
    for key, moment in alone.optimizer.items():
        torch.testing.assert_close(saved.optimizer[key], moment, atol=atol, rtol=1e-3)


def test_muon_needs_whole_matrices(tmp_path: Path) -> None:
    """Orthogonalised parts are not the parts of the orthogonalised matrix."""
    with pytest.raises(OptionError, match="parallel"):
        runs.config(tmp_path, parallel="fsdp", optimizer="muon")
