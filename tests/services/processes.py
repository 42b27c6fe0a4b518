"""Service processes for tests, as `domino-serve up` starts them."""

import os
import queue
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack import flags
from serving.unused_port import unused_port
from tests.recorded_models import DOMINO_SHIFT, TARGET

START_S, END_S = 240.0, 240.0
COMMON = {"target": TARGET, "draft": DOMINO_SHIFT, "threads": 1, "page_size": 16}


@dataclass(slots=True)
class Process:
    """A service that got ready."""

    address: str
    log: list[str]
    service: ServiceProcess
    events: "queue.SimpleQueue[Event]"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def await_line(self, text: str) -> None:
        """Returns once the service has logged it."""
        deadline = time.monotonic() + END_S
        while not any(text in line for line in self.log):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.service.pid, number)

    def ended(self) -> int:
        """The exit code, once the process has ended."""
        code = self.events.get(timeout=END_S).exit_code
        assert code is not None
        return code

    def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits for the end."""
        self.send(number)
        return self.ended()


@contextmanager
def running(module: str, **options: object) -> Iterator[Process]:
    """`python -m module` with COMMON and `options` as flags; its port stays free after it."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    log: list[str] = []
    arguments = flags({**COMMON, "port": unused_port(), **options})
    service = ServiceProcess(module, module, arguments, events=events, say=log.append)
    try:
        event = events.get(timeout=START_S)
        assert event.address is not None, log
        yield Process(event.address, log, service, events)
    finally:
        service.stop(END_S)


def ended(module: str, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """`python -m module arguments...`: exit code and lines of one that does not get ready."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    log: list[str] = []
    service = ServiceProcess(module, module, arguments, events=events, say=log.append)
    try:
        event = events.get(timeout=START_S)
        assert event.exit_code is not None, "it is ready"
        return event.exit_code, log
    finally:
        service.stop(END_S)
