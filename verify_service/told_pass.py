"""A pass that a draft of another process is told before it has ended, and what that proposes.

Made by verify_service.draft_link for verify_service.early_drafts; serving.transport.early tells it.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from domino_kernels.readback import Readback
from domino_serve.v1 import draft_pb2
from serving.early_cover import covers

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified


class ToldPass:
    """chosen [sessions, width + 2] int32, rows [sessions * width, hidden]: on the device once the
    pass has ended; of the ids that a step of `count` proposals may have: a graph may have room for
    more, and a plain step has one."""

    def __init__(self, sessions: Mapping[int, int], verified: "Verified", count: int) -> None:
        number, self._width = len(sessions), min(count + 1, verified.width)
        self._places = {session: place for place, session in enumerate(sessions)}
        self._count = count
        slots = verified.slots.view(-1, verified.width)[:number, : self._width]
        self.rows = verified.rows.index_select(0, slots.flatten().clamp(min=0))
        self.chosen = verified.out[:number, : self._width + 2].contiguous()
        self._starts = verified.positions.view(-1, verified.width)[:number, :1]

    def message(self) -> draft_pb2.EarlyStep:
        """But for where it is told."""
        return draft_pb2.EarlyStep(
            sessions=self._places, width=self._width, draft_tokens=self._count
        )

    def told(self, has_begun: Callable[[], bool], proposed: Callable[[], Tensor | None]) -> None:
        """It is on its way. has_begun: whether the draft has said so by now; proposed: what its GPU
        will write, on the device, None where nobody will."""
        self._has_begun, self._proposed = has_begun, proposed
        self._found = Readback(torch.cat((self._starts, self.chosen[:, :2]), dim=1))

    def covers(self, request: draft_pb2.StepRequest) -> bool:
        """Whether the draft has begun what the message asks for."""
        return self._is_begun and covers(
            request,
            places=self._places,
            starts=[start for start, _, _ in self._found.rows()],
            taken=self.taken,
            count=self._count,
        )

    @cached_property
    def taken(self) -> list[tuple[int, int]]:
        """Rows that the draft was given of each session, and its current token; of none, where it
        has not begun."""
        if not self._is_begun:
            return [(0, -1)] * len(self._places)
        return [(accepted + 1, current) for _, accepted, current in self._found.rows()]

    @cached_property
    def ids(self) -> Tensor:
        """Proposals [sessions, count] on the device, whatever comes to be there: ids out of range
        are harmless, and a draft that fails proposes nonsense, which costs speed."""
        ids = self._proposed()
        if ids is None:
            ids = self.chosen.new_zeros(len(self._places), self._count)
        self._ids_found = Readback(ids)
        return ids

    @cached_property
    def proposals(self) -> list[list[int]]:
        """On the host; waits for the device."""
        _ = self.ids
        return self._ids_found.rows()

    @cached_property
    def _is_begun(self) -> bool:
        return self._has_begun()
