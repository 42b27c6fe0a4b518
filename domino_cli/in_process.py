"""Both engines in one process, without gRPC: the in-process transport, for tests and tools."""

import itertools
import queue
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from domino_serve.v1 import draft_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.engine import DraftEngine, Stream
from draft_service.handshake import answer
from draft_service.load import Loaded as LoadedDraft
from serving.errors import ServingError
from serving.tensors import DTYPES
from serving.transport.plane import IN_PROCESS
from verify_service.load import Loaded as LoadedVerify
from verify_service.sampling import SamplingParams
from verify_service.sequence import DraftPlan, Event, Request


class LocalDraftLink:
    """A verify service's link to a draft engine in the same process; rows pass by reference."""

    alive = True
    projection = 0
    plane = IN_PROCESS

    def __init__(self, engine: DraftEngine, max_rows: int) -> None:
        self.max_rows, self.context_id, self.late_answers = max_rows, engine.context_id, 0
        self.engine, self._stream = engine, Stream()
        self._pending: tuple[draft_pb2.StepRequest, Tensor | None] | None = None

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self._pending = request, rows

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        assert self._pending is not None, "receive follows send"
        return self.engine.step(self._stream, *self._pending)

    def close(self) -> None:
        self.alive = False
        self.engine.close(self._stream)


class InProcess:
    """A verify engine and, with `draft`, a draft engine beside it; a context manager."""

    def __init__(self, verify: LoadedVerify, draft: LoadedDraft | None = None) -> None:
        """Raises Mismatch when the two hold models that do not belong together."""
        self.engine, self._draft, self._end = verify.engine, draft, verify.end
        self._names = itertools.count()
        self.link = _connect(verify, draft) if draft else None

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()
        self._end()

    def submit(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        *,
        mode: spec.Mode.ValueType = spec.MODE_AR,
        draft_tokens: int = 0,
        stop_ids: Sequence[int] = (),
        min_tokens: int = 0,
        sampling: SamplingParams | None = None,
        plan: DraftPlan | None = None,
    ) -> "queue.SimpleQueue[Event]":
        """Starts a request; its events arrive in the queue. `plan` names another draft link."""
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.engine.submit(
            Request(
                request_id=f"local-{next(self._names)}",
                prompt_ids=list(prompt_ids),
                max_tokens=max_tokens,
                stop_ids=frozenset(stop_ids),
                emit=events.put,
                draft=plan or self._plan(mode, len(prompt_ids) + max_tokens, draft_tokens),
                sampling=sampling,
                min_tokens=min_tokens,
            )
        )
        return events

    def _plan(self, mode: spec.Mode.ValueType, positions: int, tokens: int) -> DraftPlan | None:
        if mode == spec.MODE_AR:
            return None
        assert self._draft is not None and self.link is not None, "drafting needs a draft"
        ticket = self._draft.engine.reserve(mode, positions)
        return DraftPlan(link=self.link, ticket=ticket, mode=mode, draft_tokens=tokens)


def _connect(verify: LoadedVerify, draft: LoadedDraft) -> LocalDraftLink:
    target = verify.hello.target
    hello = answer(draft, verify.hello, target.hidden_size, DTYPES[target.dtype])
    return LocalDraftLink(draft.engine, hello.max_rows)


def collect(events: "queue.SimpleQueue[Event]") -> tuple[list[int], verify_pb2.VerifyComplete]:
    """All token ids of a request and its last message; raises the error it ended with."""
    ids: list[int] = []
    while True:
        event = events.get()
        if isinstance(event, ServingError):
            raise event
        if isinstance(event, verify_pb2.VerifyComplete):
            return ids, event
        assert isinstance(event, verify_pb2.VerifyChunk), "submit starts no scores"
        ids.extend(event.token_ids)
