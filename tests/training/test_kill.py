"""kill -9 at any moment, again and again: the run that comes out is the one never killed."""

import signal
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from training.checkpoint import MODEL, WHOLE, iterations, verify

ROOT = Path(__file__).parents[2]
PYTHONPATH = ":".join(str(ROOT / part) for part in ("", "protos/gen", "kernels"))
STEPS = 30
RUN = f"""
import sys
from pathlib import Path
import torch
from tests.training import runs
torch.set_num_threads(1)
session = runs.session(Path(sys.argv[1]), steps={STEPS}, save_interval=1, log_interval=1)
print("start", session.trainer.step, flush=True)
session.run(lambda line: print("step", flush=True))
print("end", flush=True)
"""


def run(folder: Path, kill_after: int | None) -> int:
    """The step it began with; killed once so many steps are told, or left to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder)],
        cwd=ROOT,
        env={"PYTHONPATH": PYTHONPATH, "PATH": "", "HOME": str(folder.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    start, told = -1, 0
    for line in process.stdout:
        if line.startswith("start"):
            start = int(line.split()[1])
        told += line == "step\n"
        if told == kill_after:
            process.send_signal(signal.SIGKILL)  # mostly in the middle of saving this step
            break
    process.stdout.close()
    assert process.wait(120) == (0 if kill_after is None else -signal.SIGKILL)
    return start


def test_a_run_killed_at_many_moments(tmp_path: Path) -> None:
    """A torn checkpoint under the tracker, or a counter that starts anew, costs the run."""
    starts = []
    for kill_after in (2, 5, 9, 3, None):
        starts.append(run(tmp_path / "killed", kill_after))
        if iterations(tmp_path / "killed"):
            assert set(verify(tmp_path / "killed").values()) == {WHOLE}
    assert starts == sorted(starts) and starts[-1] > 10
    run(tmp_path / "whole", None)
    name = f"iter_{STEPS:07d}"
    whole = load_file(tmp_path / "whole" / name / MODEL)
    for key, weight in load_file(tmp_path / "killed" / name / MODEL).items():
        assert torch.equal(weight, whole[key]), key
