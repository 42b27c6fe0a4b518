"""Projected rows of many sequences at once: one gather a step, however many there are."""

from collections.abc import Sequence as Seq
from typing import TypeAlias

from torch import Tensor

from domino_kernels.readback import sent
from verify_service.sequence import Sequence

RowSpan: TypeAlias = tuple[Sequence, int, int]  # positions start..end-1 of a sequence


def rows_at(table: Tensor, spans: Seq[RowSpan], page_size: int) -> Tensor:
    """table [slots, hidden] -> the spans' rows one after another [n, hidden]."""
    slots = [at for one, start, end in spans for at in one.slots(start, end, page_size)]
    return table.index_select(0, sent(slots, table.device))
