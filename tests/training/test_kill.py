"""kill -9 at any moment, again and again: the run that comes out is the one never killed."""

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.training import killed_runs
from training.checkpoint import MODEL

ROOT = Path(__file__).parents[2]
PYTHONPATH = ":".join(str(ROOT / part) for part in ("", "protos/gen", "kernels"))


def test_a_run_killed_at_many_moments(tmp_path: Path) -> None:
    """A torn checkpoint under the tracker, or a counter that starts anew, costs the run."""
    done = subprocess.run(
        [sys.executable, "-m", killed_runs.__name__, str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": PYTHONPATH, "PATH": "", "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0
    starts = [int(start) for start in done.stdout.split()]
    assert starts == sorted(starts) and starts[-1] > 10
    name = f"iter_{killed_runs.STEPS:07d}"
    whole = load_file(tmp_path / "whole" / name / MODEL)
    for key, weight in load_file(tmp_path / "killed" / name / MODEL).items():
        assert torch.equal(weight, whole[key]), key
