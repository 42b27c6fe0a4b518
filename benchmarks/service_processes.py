"""The router and a null verify service as processes of their own."""

import queue
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from domino_cli.errors import CommandError
from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack import flags

START_S, STOP_S = 300.0, 10.0


class Pace(Protocol):
    """What the two processes must know of a measurement."""

    @property
    def streams(self) -> int: ...
    @property
    def chunk_ms(self) -> float: ...
    @property
    def first_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Started:
    """A service that is ready."""

    address: str
    pid: int


@contextmanager
def running(target: Path, pace: Pace) -> Iterator[tuple[Started, Started]]:
    """The router on the target's tokenizer, and the verify service behind it."""
    from router.tokenizer import Tokenizer

    ids = Tokenizer.load(target).num_ids
    with ExitStack() as stack:
        options = {"vocab_size": ids, "chunk_ms": pace.chunk_ms, "first_id": pace.first_id}
        verify = stack.enter_context(started("benchmarks.null_verify", options))
        room = {"target": target, "verify": verify.address, "max_requests": pace.streams + 1}
        yield stack.enter_context(started("router", room)), verify


@contextmanager
def started(module: str, options: Mapping[str, object]) -> Iterator[Started]:
    """`python -m module` until the block ends; CommandError when it does not get ready."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    process = ServiceProcess(
        module, module, flags(dict(options)), events=events, say=lambda line: None
    )
    try:
        address = events.get(timeout=START_S).address
        if address is None:
            raise CommandError(f"{module} did not start:\n" + "\n".join(process.log))
        yield Started(address, process.pid)
    finally:
        process.stop(STOP_S)
