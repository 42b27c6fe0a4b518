"""What each slot of a block has to predict, and how much that counts.

Supervision is a contiguous prefix: behind the first unsupervised token nothing counts, since a
server never drafts past it from this anchor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.rows import Anchors, Rows, take


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """ids [R, N, B] int64; counts [R, N, B] bool; weights [R, N, B] float32, zero where it does
    not count."""

    ids: Tensor
    counts: Tensor
    weights: Tensor


def make_labels(
    rows: Rows, anchors: Anchors, *, block_size: int, shift: bool, gamma: float | None
) -> Labels:
    """shift: slot k predicts block position k + 1; otherwise position k, and slot 0 nothing.

    gamma: a slot's weight falls by exp(-1 / gamma) each; None weighs all alike.
    """
    columns = anchors.positions(int(shift), block_size)
    ids = take(rows.ids, columns)
    here = take(rows.starts, anchors.columns[..., None])
    same = (columns < rows.ids.shape[1]) & (take(rows.starts, columns) == here)
    fits = anchors.live[..., None] & same & take(rows.supervised, columns)
    counts = fits.long().cumprod(-1).bool()
    if not shift:
        counts[..., 0] = False
    weights = counts * decay(block_size, shift=shift, gamma=gamma, device=ids.device)
    return Labels(ids=ids, counts=counts, weights=weights)


def decay(
    block_size: int, *, shift: bool, gamma: float | None, device: torch.device | None = None
) -> Tensor:
    """Weight of each slot [B], 1 for the first predicted token."""
    slots = torch.arange(block_size, device=device)
    if gamma is None:
        return torch.ones(block_size, device=device)
    return torch.exp(-(slots if shift else (slots - 1).clamp(min=0)) / gamma)
