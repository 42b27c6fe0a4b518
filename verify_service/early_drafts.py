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
from verify_service.draft_link import DraftLink
from verify_service.scheduler import Work
from verify_service.sequence import Sequence

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified


class Proposals(Protocol):
    """Of the sequences of a step, in its order: on the device, and on the host once it is done."""

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
    def proposals(self) -> list[list[int]]:
        return [self.of.proposals[row] for row in self.rows]


@runtime_checkable
class EarlyLink(DraftLink, Protocol):
    """To a draft in this process; other links never begin."""

    def begin(self, sessions: Mapping[int, int], verified: "Verified", count: int) -> None:
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
        self._sequences: list[Sequence] = []
        self._asked: dict[int, int] = {}  # proposals by session
        self._proposals: Proposals | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether blocks of the last message are on their way."""
        return self._proposals is not None

    def begin(self, work: Seq[Work], verified: "Verified | None") -> None:
        """Behind the step that runs `work`, where all of it is drafted for alike."""
        self._link = self._proposals = None
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
        link.begin(sessions, verified, count)
        self._link, self._sequences = link, [item.sequence for item in work]

    def go_on(self, link: DraftLink, request: draft_pb2.StepRequest) -> bool:
        """Whether the link's draft does already what is asked for."""
        if self._link is None or link is not self._link:
            return False
        self._proposals = self._link.go_on(request)
        self._asked = {step.session: step.draft_tokens for step in request.steps}
        return self._proposals is not None

    def next_step(self, running: Seq[Sequence]) -> "tuple[list[Work], Proposals] | None":
        """The step after this message's, where it is known but for its proposals: nobody has come.
        Ids of proposals stand for those on the device."""
        proposals, self._proposals = self._proposals, None
        places = {id(sequence): row for row, sequence in enumerate(self._sequences)}
        if proposals is None or not running or any(id(one) not in places for one in running):
            return None
        work: list[Work] = []
        for sequence in running:
            if not sequence.draft or sequence.draft.session not in self._asked:
                return None
            count = self._asked[sequence.draft.session]
            ids = [sequence.tokens[-1], *[0] * count]
            work.append(Work(sequence=sequence, ids=ids, choices=1 + count))
        return work, Some(proposals, [places[id(sequence)] for sequence in running])
