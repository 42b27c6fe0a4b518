"""Greedy choice by the CPU kernel against a scan written out."""

import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from domino_kernels.argmax import argmax

VALUES = [0.0, 1.5, -2.0, 3.25, math.inf, -math.inf, math.nan]


def plain_argmax(row: list[float]) -> int:
    """The first of the highest; -1 as soon as one is no number."""
    return -1 if any(map(math.isnan, row)) else row.index(max(row))


@settings(deadline=None)  # the first call may build the kernels
@example(places=[(1, math.inf), (16, math.inf)])
@given(places=st.lists(st.tuples(st.integers(0, 32), st.sampled_from(VALUES)), max_size=4))
def test_ties_between_lanes(places: list[tuple[int, float]]) -> None:
    """Each lane finds its own best: among equal infinities a later place has won."""
    row = [0.0] * 33
    for place, value in places:
        row[place] = value
    assert argmax(torch.tensor([row])).tolist() == [plain_argmax(row)]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.sampled_from([1, 7, 16, 33, 4096, 4097, 9000]))
def test_first_of_the_highest_and_none_among_nans(data: st.DataObject, width: int) -> None:
    """The last of equal scores, or a NaN taken for a score, is another token than the target's."""
    filler = data.draw(st.sampled_from(VALUES[:-1]))
    x = torch.full((3, width), filler)
    for row in range(3):
        for place, value in data.draw(
            st.lists(st.tuples(st.integers(0, width - 1), st.sampled_from(VALUES)), max_size=4)
        ):
            x[row, place] = value
    assert argmax(x).tolist() == [plain_argmax(row) for row in x.tolist()]
