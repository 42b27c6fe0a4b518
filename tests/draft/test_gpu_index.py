"""Indices of a pass on a GPU against what the CPU's attention and pages say, row by row."""

import numpy as np
import pytest

from domino_kernels.attention import Span, Visibility
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part
from draft_service.gpu_index import Ints, appended, edges, page_table, slots_of

RULES = [
    Visibility(causal=causal, window=window, window_moves=moves)
    for causal in (True, False)
    for window, moves in ((None, True), (3, True), (3, False), (50, True), (50, False))
]


@pytest.mark.parametrize("rule", RULES)
def test_edges_are_the_visibilitys(rule: Visibility) -> None:
    """A window that starts one key off only lowers acceptance."""
    starts, block = [0, 2, 9, 40], 8
    start = np.array(starts, np.int32)[:, None]
    positions: Ints = (start + np.arange(block)).astype(np.int32)
    first, last = edges(rule, start, positions)
    for b, at in enumerate(starts):
        wanted = rule.keys(Span(start=at, count=block, pages=[]))
        assert (first[b].tolist(), last[b].tolist()) == wanted


def test_new_rows_lie_one_part_after_another() -> None:
    """Rows of one session in another's pages."""

    def part(pages: list[int], start: int, rows: slice) -> Part:
        mode = spec.MODE_DOMINO
        return Part(mode=mode, pages=pages, start=start, rows=rows, current=1, draft_tokens=1)

    parts = [
        part([5, 3], 3, slice(10, 13)),
        part([7], 2, slice(13, 13)),
        part([1, 2, 9], 8, slice(13, 15)),
    ]
    table = page_table(parts)
    assert table.tolist() == [[5, 3, 0], [7, 0, 0], [1, 2, 9]]
    positions, slots = appended(parts, table, 4)
    assert positions.tolist() == [3, 4, 5, 8, 9]
    assert slots.tolist() == [5 * 4 + 3, 3 * 4, 3 * 4 + 1, 9 * 4, 9 * 4 + 1]
    block = slots_of(table[:1], np.array([[3, 4]], np.int32), 4)
    assert block.tolist() == [[23, 12]]
