"""One service as a child process: ready line in, log out with a prefix, drained or killed."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from domino_cli.progress import Say

LAST_LINES = 20  # of a service's log, shown when it ends unexpectedly


@dataclass(frozen=True, slots=True)
class Event:
    """What a service did: `address` is set when it got ready, `exit_code` when it ended."""

    service: str
    address: str | None = None
    exit_code: int | None = None


class ServiceProcess:
    """`python -m module flags...` in a session of its own, so that Ctrl-C reaches only us.

    It gets SIGTERM when this process dies, however it does.
    """

    def __init__(
        self,
        name: str,
        module: str,
        flags: Sequence[str],
        *,
        events: "queue.SimpleQueue[Event]",
        say: Say,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """environment: variables beside our own."""
        self.name = name
        self.log: deque[str] = deque(maxlen=LAST_LINES)
        self._events = events
        self._say = say
        self._process = spawn(
            ["domino_cli.tied", module, *flags],
            {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._logger = self._thread(self._read_log, self._process.stderr)
        self._watcher = self._thread(self._watch, self._process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, grace_s: float) -> None:
        """Asks it to drain, waits `grace_s`, then kills it. Returns when it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._say(f"{self.name}: still running {grace_s:g} s after SIGTERM, killing it")
                self._process.kill()
        self._watcher.join()
        self._logger.join()

    def kill(self) -> None:
        self._process.kill()

    def _thread(self, target: Callable[[IO[str]], None], stream: IO[str]) -> threading.Thread:
        thread = threading.Thread(target=target, args=(stream,), daemon=True)
        thread.start()
        return thread

    def _watch(self, stdout: IO[str]) -> None:
        with stdout:
            for line in stdout:
                address = ready_address(line)
                if address is None:
                    self._keep(line)
                else:
                    self._events.put(Event(self.name, address=address))
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._logger.join()  # its last lines tell why
        self._events.put(Event(self.name, exit_code=code))

    def _read_log(self, stderr: IO[str]) -> None:
        with stderr:
            for line in stderr:
                self._keep(line)

    def _keep(self, line: str) -> None:
        self.log.append(line.rstrip("\n"))
        self._say(f"{self.name} | {self.log[-1]}")


def spawn(arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """`python -m arguments...` in a session of its own; all that it reads and writes are pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )


def ready_address(line: str) -> str | None:
    """The address in a service's ready line, None for any other line."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event["address"] if isinstance(event, dict) and event.get("event") == "ready" else None
