"""A process that has imported torch and forks for whoever asks, by messages with file descriptors.

A service started so spares two seconds of a core. tests.warm_start asks.
"""

import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch  # noqa: F401

MAX_BYTES = 1 << 18  # of a request


def main(place: socket.socket) -> None:
    """Runs, in a forked process, what each request names; ends when nobody can ask any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that those who have waited are forgotten
    while True:
        request, fds, _, _ = socket.recv_fds(place, MAX_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    place.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, status = fds
    fork_and_tell(standard, status)
    os.setsid()
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    run(**json.loads(request))


def fork_and_tell(standard: Sequence[int], status: int) -> None:
    """Returns in the new process; the old one writes its id, waits, and writes its exit code."""
    pid = os.fork()
    if not pid:
        os.close(status)
        return
    for fd in standard:
        os.close(fd)
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % pid)
        _, ended = os.waitpid(pid, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def run(module: str, arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """As `python -m module arguments...` there."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
