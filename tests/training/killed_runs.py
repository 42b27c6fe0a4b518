"""`python -m tests.training.killed_runs FOLDER`: one run killed at many moments, one left alone.

A process of its own that forks each run: importing torch takes longer than a run, and only a
process without other threads may fork. Prints the steps that the runs began with.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

import torch

from tests.training import runs
from training.checkpoint import WHOLE, iterations, verify

STEPS = 30
KILLED_AFTER = (2, 5, 9, 3, None)  # so many steps told; None: left to its end


def main() -> None:
    folder, starts = Path(sys.argv[1]), []
    torch.set_num_threads(1)
    runs.session(folder / "opened")  # imports what opening takes, once for all runs
    for kill_after in KILLED_AFTER:
        starts.append(run(folder / "killed", kill_after))
        if iterations(folder / "killed"):
            assert set(verify(folder / "killed").values()) == {WHOLE}
    run(folder / "whole", None)
    print(*starts)


def run(folder: Path, kill_after: int | None) -> int:
    """The step it began with."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        train(folder, writing, kill_after)
    os.close(writing)
    with os.fdopen(reading) as told:
        start = int(told.readline())
        for number, _ in enumerate(told, 1):
            if number == kill_after:
                os.kill(child, signal.SIGKILL)  # mostly in the middle of saving this step
                break
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == (0 if kill_after is None else -signal.SIGKILL)
    return start


def train(folder: Path, writing: int, kill_after: int | None) -> None:
    """The child: tells the step it begins with, then a line a step, no more than one too many."""
    session = runs.session(folder, steps=STEPS, save_interval=1, log_interval=1)
    told, lines = os.fdopen(writing, "w"), itertools.count(1)

    def tell(line: object) -> None:
        print("step", file=told, flush=True)
        if kill_after is not None and next(lines) > kill_after:
            signal.pause()

    print(session.trainer.step, file=told, flush=True)
    session.run(tell)
    os._exit(0)


if __name__ == "__main__":
    main()
