"""Blocks that a draft on the target's own device begins behind each step, before it is asked.

The work of a running step in; which of the next message it covers, and the step after that, out.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from verify_service.draft_exchange import wanted
from verify_service.draft_link import DraftLink
from verify_service.executor import Executor
from verify_service.scheduler import Scheduler, Work
from verify_service.sequence import Sequence

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified


class Proposals(Protocol):
    """Of the sequences of a step, in its order: on the device, and on the host once it is done.

    taken: rows that the draft was given of each, and its current token.
    """

    @property
    def taken(self) -> list[tuple[int, int]]: ...
    @property
    def ids(self) -> Tensor: ...
    @property
    def proposals(self) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class Some:
    """Those in such rows of a step's."""

    of: Proposals
    rows: list[int]

    @property
    def ids(self) -> Tensor:
        every = self.of.ids
        if self.rows == list(range(len(every))):
            return every
        rows = torch.tensor(self.rows, pin_memory=every.is_cuda)
        return every.index_select(0, rows.to(every.device, non_blocking=True))

    @property
    def taken(self) -> list[tuple[int, int]]:
        return [self.of.taken[row] for row in self.rows]

    @property
    def proposals(self) -> list[list[int]]:
        return [self.of.proposals[row] for row in self.rows]


@runtime_checkable
class EarlyLink(DraftLink, Protocol):
    """To a draft in this process, or one on this host that shares memory with it."""

    def begin(
        self, sessions: Mapping[int, int], verified: "Verified", count: int
    ) -> Proposals | None:
        """Starts `count` proposals for each session behind a verify step on the same device, where
        that can be; sessions: in the step's order, with the most rows it may give each."""
        ...

    def go_on(self, request: draft_pb2.StepRequest) -> Proposals | None:
        """In place of `send`: None where what began is not what is asked for."""
        ...


class EarlyDrafts:
    """At most one link's blocks at a time; the engine's thread alone uses it."""

    def __init__(self) -> None:
        self._link: EarlyLink | None = None
        self._begun: Proposals | None = None
        self._places: dict[int, tuple[int, int]] = {}  # by id(): row and start of each sequence
        self._count = 0
        self.is_at_work = False  # blocks of the last message are on their way

    def begin(self, work: Seq[Work], verified: "Verified | None") -> None:
        """Behind the step that runs `work`, where all of it is drafted for alike."""
        self._link, self._begun, self.is_at_work = None, None, False
        drafts = [item.sequence.draft for item in work]
        count = max((len(item.ids) - 1 for item in work), default=0)
        if verified is None or not count:
            return
        link = drafts[0].plan.link if drafts[0] else None
        if not isinstance(link, EarlyLink):
            return
        sessions: dict[int, int] = {}
        for draft, item in zip(drafts, work, strict=True):
            if not draft or draft.plan.link is not link or not draft.opened or draft.resting:
                return
            if draft.kv_len != item.start:
                return
            sessions[draft.session] = len(item.ids)
        self._link, self._begun = link, link.begin(sessions, verified, count)
        self._places = {id(w.sequence): (row, w.start) for row, w in enumerate(work)}
        self._count = count

    def go_on(self, link: DraftLink, request: draft_pb2.StepRequest) -> bool:
        """Whether the link's draft does already what is asked for."""
        if self._link is None or link is not self._link:
            return False
        self.is_at_work = self._link.go_on(request) is not None
        return self.is_at_work

    def start_next(
        self, executor: Executor, scheduler: Scheduler, draft_tokens: int | None
    ) -> None:
        """The step after the one committed, of `draft_tokens` proposals at most, while the draft
        works; where the next message opens sessions it is not asked for what it began."""
        if any(s.draft and not s.draft.opened for s in scheduler.waiting):
            return
        if known := self._next_step(scheduler.running, draft_tokens):
            executor.start_ahead(*known)

    def _next_step(
        self, running: Seq[Sequence], draft_tokens: int | None
    ) -> "tuple[list[Work], Proposals] | None":
        """What is known but for the proposals, where nobody has come; ids of these stand for those
        on the device."""
        if not self._begun or not running or draft_tokens == 0:
            return None
        work: list[Work] = []
        rows: list[int] = []
        for sequence in running:
            place, draft = self._places.get(id(sequence)), sequence.draft
            if place is None or draft is None or draft.plan.link is not self._link:
                return None
            row, start = place
            current, count = sequence.tokens[-1], max(wanted(sequence, draft, draft_tokens), 0)
            if self._begun.taken[row] != (sequence.kv_len - start, current) or count > self._count:
                return None
            work.append(Work(sequence=sequence, ids=[current, *[0] * count], choices=1 + count))
            rows.append(row)
        return work, Some(self._begun, rows)
