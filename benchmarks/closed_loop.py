"""Clients that ask again as soon as they are answered, in one process with engine and draft.

Steps in which somebody joins are then a large part of all, as where people are served; the times of
both kinds come out. `benchmarks.pair_steps` times those in which nobody comes or goes.
"""

import random
import threading
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from benchmarks.pair_steps import COMPUTE, WAIT_S, Load, Pair, plan
from domino_cli.local_link import LocalDraftLink
from domino_serve.v1 import verify_pb2
from verify_service.engine import Engine
from verify_service.sequence import Event, Request
from verify_service.timeline import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """While every client has a request.

    joins: share of the steps that run somebody's prompt. join_ms, other_ms: a step of each kind
    on average, from its begin to the next one's.
    """

    steps: int
    tok_s: float
    joins: float
    join_ms: float
    other_ms: float


def serve(pair: Pair, load: Load, *, rounds: int) -> Served:
    """`load.concurrency` clients, `rounds` requests each of half to all of `load.new` tokens."""
    engine = pair.engine(load)
    link = pair.link(load, sessions=2 * load.concurrency) if load.width > 1 else None
    clients = Clients(engine, load, link, count=rounds * load.concurrency, vocab=pair.vocab)
    for _ in range(load.concurrency):
        clients.ask()
    engine.start(compute=COMPUTE)
    try:
        clients.wait()
    finally:
        engine.stop()
    return served(engine.timeline.steps, clients.first_end_ns, clients.last_ask_ns)


class Clients:
    """Each asks for the next answer where its last one ends: in the engine's thread."""

    def __init__(
        self, engine: Engine, load: Load, link: LocalDraftLink | None, *, count: int, vocab: int
    ) -> None:
        """count: requests of all of them together; the same ones each time."""
        self._engine, self._load, self._link, self._vocab = engine, load, link, vocab
        self._left, self._running, self._done = count, 0, threading.Event()
        self._draw = random.Random(count)
        self._error: Exception | None = None
        self.first_end_ns = self.last_ask_ns = 0

    def ask(self) -> None:
        """Sends one more request, unless all were sent."""
        if not self._left:
            return
        self._left -= 1
        self._running += 1
        self.last_ask_ns = time.monotonic_ns()
        load = self._load
        self._engine.submit(
            Request(
                request_id=str(self._left),
                prompt_ids=[self._draw.randrange(self._vocab) for _ in range(load.prompt)],
                max_tokens=self._draw.randint(load.new // 2, load.new),
                stop_ids=frozenset(),
                emit=self._emit,
                draft=plan(self._link, load) if self._link else None,
            )
        )

    def wait(self) -> None:
        """Raises the error of one that failed."""
        if not self._done.wait(WAIT_S):
            raise TimeoutError(f"{self._running} requests have not ended")
        if self._error:
            raise self._error

    def _emit(self, event: Event) -> None:
        if isinstance(event, verify_pb2.VerifyChunk):
            return
        self.first_end_ns = self.first_end_ns or time.monotonic_ns()
        self._error = event if isinstance(event, Exception) else self._error
        self._running -= 1
        self.ask()
        if not self._running:
            self._done.set()


def served(steps: Seq[Step], begin_ns: int, end_ns: int) -> Served:
    """Of the steps between the two; raises ValueError without one of each kind."""
    inside = [step for step in steps if begin_ns <= step.began_ns <= end_ns]
    spans = [(one, (after.began_ns - one.began_ns) / 1e6) for one, after in pairwise(inside)]
    joins = [span for step, span in spans if step.prompt_positions]
    others = [span for step, span in spans if not step.prompt_positions]
    if not joins or not others:
        raise ValueError(f"{len(joins)} steps with prompts and {len(others)} without: ask for more")
    return Served(
        steps=len(spans),
        tok_s=sum(step.tokens for step, _ in spans) / sum(span for _, span in spans) * 1e3,
        joins=len(joins) / len(spans),
        join_ms=mean(joins),
        other_ms=mean(others),
    )
