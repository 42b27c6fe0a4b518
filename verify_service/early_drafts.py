"""Blocks that a draft on the target's own device begins behind each step, before it is asked.

The work of a running step in; which of the next message it covers, and the step after that, out.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from domino_kernels.readback import sent
from domino_serve.v1 import draft_pb2
from verify_service.draft_exchange import wanted
from verify_service.draft_link import DraftLink
from verify_service.early_rows import EarlyRows, known_end
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
        return every.index_select(0, sent(self.rows, every.device))

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

    def __init__(self, rows: EarlyRows) -> None:
        self._rows = rows
        self._link: EarlyLink | None = None
        self._begun: Proposals | None = None
        self._places: dict[int, tuple[int, int]] = {}  # by id(): row and start of each sequence
        self._count = 0
        self._most: int | None = None  # proposals asked for last, None: as many as plans say
        self.is_at_work = False  # blocks of the last message are on their way

    def begin(
        self, work: Seq[Work], waiting: Iterable[Sequence], verified: "Verified | None"
    ) -> None:
        """Behind the step that runs `work`, where all whose tokens it chooses, which come first,
        are drafted for alike. Other prompts' rows are told, and sessions of who waits opened."""
        self._link, self._begun, self.is_at_work = None, None, False
        chosen = [item for item in work if item.choices]
        link, count = _link_of(chosen), max(map(self._asked, chosen), default=0)
        if verified is None or link is None or not link.alive or not count:
            return
        self._rows.tell(link, work, waiting, verified.out.device)
        sessions: dict[int, int] = {}
        for item in work:
            draft, end = item.sequence.draft, known_end(item)
            if draft is None or draft.plan.link is not link:
                continue  # a prompt that goes on, with no draft or another one
            if not draft.opened or draft.kv_len < end or (item.choices and draft.kv_len > end):
                return
            if item.choices:
                sessions[draft.session] = item.choices
        self._link, self._begun = link, link.begin(sessions, verified, count)
        self._places = {id(w.sequence): (row, known_end(w)) for row, w in enumerate(chosen)}
        self._count = count

    def _asked(self, item: Work) -> int:
        """Proposals that are likely to be asked for behind the item."""
        if 1 < item.choices == len(item.ids):
            return item.choices - 1
        draft = item.sequence.draft
        return wanted(item.sequence, draft, self._most) if draft else 0

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
        self._most = draft_tokens
        if any(s.draft and not s.draft.opened for s in scheduler.waiting):
            return
        if known := self._next_step(scheduler.running, draft_tokens):
            executor.start_ahead(*known)

    def _next_step(
        self, running: Seq[Sequence], draft_tokens: int | None
    ) -> "tuple[list[Work], Proposals] | None":
        """What is known but for the proposals; ids of these stand for those on the device. Prompts
        go on beside it."""
        if not self._begun or not running or draft_tokens == 0:
            return None
        work: list[Work] = []
        rows: list[int] = []
        for sequence in running:
            if sequence.in_prefill:
                continue
            place, draft = self._places.get(id(sequence)), sequence.draft
            if place is None or draft is None or draft.plan.link is not self._link:
                return None
            row, start = place
            current, count = sequence.tokens[-1], wanted(sequence, draft, draft_tokens)
            if self._begun.taken[row] != (sequence.kv_len - start, current) or count > self._count:
                return None
            work.append(Work(sequence=sequence, ids=[current, *[0] * count], choices=1 + count))
            rows.append(row)
        return (work, Some(self._begun, rows)) if work else None


def _link_of(chosen: Seq[Work]) -> EarlyLink | None:
    """The one by which all of them are drafted for."""
    drafts = [item.sequence.draft for item in chosen]
    link = drafts[0].plan.link if drafts and drafts[0] else None
    alike = all(draft and draft.plan.link is link and not draft.resting for draft in drafts)
    return link if alike and isinstance(link, EarlyLink) else None
