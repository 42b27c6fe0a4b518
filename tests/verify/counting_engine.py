"""A verify engine whose target counts, so that the answer is obvious; steps can be watched."""

import itertools
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from domino_serve.v1 import verify_pb2
from serving.errors import ServingError
from tests.patience import NEVER_S
from verify_service.drafting import Drafting
from verify_service.engine import Engine
from verify_service.executor import Executor
from verify_service.row_spans import RowSpan
from verify_service.scheduler import Scheduler, Work
from verify_service.sequence import Chosen, DraftPlan, Event, Request
from verify_service.width_policy import WidthPolicy

VOCAB, HIDDEN = 1000, 4
Watch = Callable[[Sequence[Work]], None]


class CountingExecutor(Executor):
    """Chooses id + 1 after every id; `watch` sees each step first, from the engine's thread."""

    def __init__(self) -> None:
        self.watch: Watch = lambda work: None

    def run(self, work: Sequence[Work]) -> list[Chosen]:
        self.watch(work)
        return [Chosen(ids=[i + 1 for i in w.ids[len(w.ids) - w.choices :]]) for w in work]

    def clear(self, pages: list[int]) -> None:
        """There is no KV."""

    def use_projection(self, number: int) -> None:
        """Rows are the ids themselves."""

    def rows(self, spans: Sequence[RowSpan]) -> Tensor:
        """Rows that say whose token they are."""
        tokens = [token for one, start, end in spans for token in one.tokens[start:end]]
        ids = torch.tensor(tokens, dtype=torch.float32)
        return ids[:, None].expand(-1, HIDDEN)


@dataclass(slots=True)
class Answer:
    """A request's events."""

    request_id: str
    events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)

    def collect(self) -> tuple[list[int], verify_pb2.VerifyComplete]:
        """All ids and the last message; raises the error it ended with."""
        ids: list[int] = []
        while True:
            event = self.events.get(timeout=60)
            if isinstance(event, ServingError):
                raise event
            if isinstance(event, verify_pb2.VerifyComplete):
                assert self.events.empty(), "nothing follows the last message"
                return ids, event
            assert isinstance(event, verify_pb2.VerifyChunk)
            ids.extend(event.token_ids)


class CountingEngine:
    """Page size 4, and small limits."""

    def __init__(
        self,
        *,
        pages: int = 100,
        max_sequences: int = 8,
        max_waiting: int = 8,
        prefill_tokens: int = 4,
        step_s: float = NEVER_S,
        timeout_s: float = NEVER_S,
        widths: WidthPolicy | None = None,
    ) -> None:
        self.executor = CountingExecutor()
        self.scheduler = Scheduler(
            pages=pages, page_size=4, max_sequences=max_sequences, prefill_tokens=prefill_tokens
        )
        self.drafting = Drafting(self.executor.rows, VOCAB, step_s=step_s, timeout_s=timeout_s)
        self.engine = Engine(
            self.executor, self.scheduler, self.drafting, max_waiting=max_waiting, widths=widths
        )
        self._names = itertools.count()

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        name: str | None = None,
        stops: Sequence[int] = (),
        draft: DraftPlan | None = None,
    ) -> Answer:
        answer = Answer(name or f"request-{next(self._names)}")
        self.engine.submit(
            Request(
                request_id=answer.request_id,
                prompt_ids=list(prompt),
                max_tokens=max_tokens,
                stop_ids=frozenset(stops),
                emit=answer.events.put,
                draft=draft,
            )
        )
        return answer

    def assert_free(self) -> None:
        """Once idle, every page is free."""
        assert self.engine.idle.wait(60)
        assert self.scheduler.allocator.num_free == self.scheduler.allocator.num_pages


@contextmanager
def counting(*, draft_faults: int = 0, **options: Any) -> Iterator[CountingEngine]:
    """A running engine that must be free at the end, and as often at fault with its drafts."""
    made = CountingEngine(**options)
    made.engine.start()
    try:
        yield made
        made.assert_free()
        assert made.drafting.num_faults == draft_faults
    finally:
        made.engine.stop()


def counted(first: int, count: int) -> list[int]:
    """What the target says after `first`."""
    return list(range(first + 1, first + 1 + count))
