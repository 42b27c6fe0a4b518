"""`python -m domino_cli.tied MODULE ...`: runs a module that is told to end when its parent dies.

The parent holds the other end of its standard input, which the kernel closes even after kill -9.
"""

import os
import runpy
import signal
import sys
import threading

_STDIN = 0


def tie() -> None:
    """SIGTERM to this process once its standard input ends; the module finds an empty one."""
    held = os.dup(_STDIN)
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), _STDIN)
    threading.Thread(target=_end_with, args=(held,), name="parent", daemon=True).start()


def _end_with(held: int) -> None:
    os.read(held, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    tie()
    _, module, *sys.argv[1:] = sys.argv
    runpy.run_module(module, run_name="__main__", alter_sys=True)
