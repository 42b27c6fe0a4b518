"""Both engines in one process, without gRPC, for tests and tools."""

import itertools
import queue
from collections.abc import Sequence
from typing import Self

from domino_cli.local_link import LocalDraftLink
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from draft_service.load import Loaded as LoadedDraft
from serving.errors import ServingError
from verify_service.load import Loaded as LoadedVerify
from verify_service.sampling import SamplingParams
from verify_service.sequence import DraftPlan, Event, Request


class InProcess:
    """A verify engine and, with `draft`, a draft engine beside it; a context manager."""

    def __init__(self, verify: LoadedVerify, draft: LoadedDraft | None = None) -> None:
        """Raises Mismatch when the two hold models that do not belong together."""
        self.engine, self._draft, self._end = verify.engine, draft, verify.end
        self._names = itertools.count()
        self.link = LocalDraftLink.greeting(draft, verify.hello) if draft else None

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
        plan = plan or self._plan(mode, len(prompt_ids) + max_tokens, draft_tokens)
        self.engine.submit(
            Request(
                request_id=f"local-{next(self._names)}",
                prompt_ids=list(prompt_ids),
                max_tokens=max_tokens,
                stop_ids=frozenset(stop_ids),
                emit=events.put,
                draft=plan,
                keeps_rows=plan is not None,
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
