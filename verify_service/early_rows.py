"""What a draft on the target's device lacks until a step's end, told while the step runs.

Work of a running pass in; sessions opened and rows given, so that whoever joins drafts with the
others. verify_service.early_drafts begins their blocks then.
"""

from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from verify_service.draft_exchange import Asked, Message, rows_step
from verify_service.draft_link import DraftLink
from verify_service.row_spans import RowSpan
from verify_service.scheduler import Work
from verify_service.sequence import Sequence


@runtime_checkable
class RowsLink(Protocol):
    """To a draft in this process, which takes rows that its device is still to make."""

    @property
    def device(self) -> torch.device: ...
    def tell(
        self, request: draft_pb2.StepRequest, rows: Tensor | None
    ) -> draft_pb2.StepResponse | None:
        """Answered at once, None by a draft that is gone; nothing is asked to be drafted."""
        ...


def known_end(item: Work) -> int:
    """Position behind those that the item's pass is sure to keep: the first of its choices."""
    return item.start + len(item.ids) - item.choices


class EarlyRows:
    """take: gets each answer; owed: links that have not answered, which are told nothing."""

    def __init__(
        self,
        rows_of: Callable[[list[RowSpan]], Tensor],
        take: Callable[[Asked, draft_pb2.SessionResult], None],
        owed: Container[DraftLink],
    ) -> None:
        self._rows_of, self._take, self._owed = rows_of, take, owed

    def tell(
        self, link: DraftLink, work: Seq[Work], waiting: Iterable[Sequence], device: torch.device
    ) -> None:
        """Positions that `work` is sure to keep, and who waits, where the draft shares `device`."""
        if not isinstance(link, RowsLink) or link.device != device or link in self._owed:
            return
        message = Message(link)
        ends = [(item.sequence, known_end(item)) for item in work]
        for sequence, end in [*ends, *((one, 0) for one in waiting)]:
            draft = sequence.draft
            if draft and draft.plan.link is link and not draft.resting:
                message.add(sequence, draft, rows_step(draft, end, message.budget))
        if not message.asked:
            return
        rows = self._rows_of(message.spans) if message.spans else None
        answer = link.tell(message.request, rows)
        for result in answer.results if answer else ():
            if asked := message.asked.get(result.session):
                self._take(asked, result)
