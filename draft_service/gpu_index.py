"""Where the rows of a pass are: parts in, positions, slots and visible keys as arrays out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from domino_kernels.attention import Visibility
from draft_service.executor import Part

Ints = NDArray[np.int32]


def page_table(parts: Sequence[Part]) -> Ints:
    """Each part's pages [parts, most pages], zeros behind them."""
    table = np.zeros((len(parts), max(len(part.pages) for part in parts)), np.int32)
    for row, part in zip(table, parts, strict=True):
        row[: len(part.pages)] = part.pages
    return table


def slots_of(table: Ints, positions: Ints, page_size: int) -> Ints:
    """table [n, pages], positions [n, rows] of each session -> their slots [n, rows]."""
    pages = np.take_along_axis(table, positions // page_size, -1)
    slots: Ints = pages * page_size + positions % page_size
    return slots


def appended(parts: Sequence[Part], table: Ints, page_size: int) -> tuple[Ints, Ints]:
    """Positions and slots of the parts' new rows, one part after the other; table [>= parts, ..]"""
    counts = np.array([part.num_rows for part in parts])
    starts = np.array([part.start for part in parts], np.int32) - (counts.cumsum() - counts)
    part = np.repeat(np.arange(len(parts)), counts)
    positions = (starts[part] + np.arange(len(part))).astype(np.int32)
    slots: Ints = table[part, positions // page_size] * page_size + positions % page_size
    return positions, slots


def edges(rule: Visibility, start: Ints, positions: Ints) -> tuple[Ints, Ints]:
    """Visibility.keys of many blocks: start [n, 1], positions [n, block] -> first, last alike."""
    end = positions[:, -1:] + 1
    last = positions + 1 if rule.causal else np.broadcast_to(end, positions.shape)
    if rule.window is None:
        return np.zeros_like(positions), last
    first = positions + 1 - rule.window if rule.window_moves else start - rule.window
    return np.broadcast_to(np.maximum(first, 0), positions.shape), last
