"""Engine services of tests, forked from a process that has torch; tests.torch_loaded is that one.

Everything else about them is as `python -m` has it: arguments, environment, session, exit code. All
services get the limits of tests.patience. What the command line starts in a test starts from
nothing, as do services on other systems.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

import pytest

from domino_cli import service_process
from tests.patience import patient

ENGINES = ("draft_service", "verify_service", "domino_cli.one_process", "tests.chaos.")


@contextmanager
def warm_starts() -> Iterator[None]:
    """Services that ServiceProcess starts within are patient, engines among them forked."""
    from_nothing = service_process.spawn
    forker = Forker()

    def spawn(
        arguments: Sequence[str], environment: Mapping[str, str]
    ) -> "Forked | subprocess.Popen[str]":
        forks = sys.platform == "linux" and arguments[1].startswith(ENGINES)
        return (forker.spawn if forks else from_nothing)(patient(arguments), environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service_process, "spawn", spawn)
        try:
            yield
        finally:
            forker.close()


class Forker:
    """The process that forks; begins with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: socket.socket | None = None

    def spawn(self, arguments: Sequence[str], environment: Mapping[str, str]) -> "Forked":
        """In place of domino_cli.service_process.spawn."""
        module, *others = arguments
        request = {"module": module, "arguments": others, "folder": os.getcwd()}
        with self._lock:
            self._place = self._place or self._begin()
            message = json.dumps(request | {"environment": dict(environment)})
            return Forked(self._place, message.encode())

    def close(self) -> None:
        if self._place:
            self._place.close()
            self._process.wait()

    def _begin(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-u", "-m", "tests.torch_loaded", str(its.fileno())]
        with its:
            self._process = subprocess.Popen(
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        return ours


class Forked:
    """What ServiceProcess uses of a subprocess.Popen."""

    def __init__(self, place: socket.socket, request: bytes) -> None:
        its_input, ours = os.pipe()
        self.stdin = os.fdopen(ours, "w")
        self.stdout, its_output = _readable()
        self.stderr, its_errors = _readable()
        self._status, told = _readable()
        theirs = [its_input, its_output, its_errors, told]
        socket.send_fds(place, [request], theirs)
        for fd in theirs:
            os.close(fd)
        self.pid = int(self._status.readline())
        self._code: int | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def poll(self) -> int | None:
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; minus a signal's number."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self._code is not None
        return self._code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._code is None:
                os.kill(self.pid, number)

    def _await_end(self) -> None:
        with self._status:
            self._code = int(self._status.readline())
        self._ended.set()


def _readable() -> tuple[IO[str], int]:
    """A pipe's text, and where it is written."""
    ours, theirs = os.pipe()
    return os.fdopen(ours, errors="replace"), theirs
