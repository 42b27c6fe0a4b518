"""Token rows, each one or several whole documents, and the anchors drawn from them.

A block starts at an anchor: a supervised token whose next token is supervised too. Next: labels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """R rows of S tokens.

    ids [R, S] int64. supervised [R, S] bool: tokens to be predicted. starts [R, S] int64: the
    column where the token's document begins; padding has S. features [R, S, K * H]: tapped layer
    outputs, row t of token t. last [R, S, H]: the target's final hidden state behind its norm, for
    training on its distribution; None without.
    """

    ids: Tensor
    supervised: Tensor
    starts: Tensor
    features: Tensor
    last: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """Where blocks begin: columns [R, N] int64, ascending; live [R, N] bool is False for slots
    without an anchor, which come last and have column 0."""

    columns: Tensor
    live: Tensor

    def positions(self, offset: int, block_size: int) -> Tensor:
        """Columns [R, N, B] of a block's slots, moved by `offset`; may pass the row's end."""
        steps = torch.arange(offset, offset + block_size, device=self.columns.device)
        return self.columns[..., None] + steps


def one_document(ids: Tensor, supervised: Tensor, features: Tensor) -> Rows:
    """Rows that hold one document each, without padding."""
    return Rows(ids=ids, supervised=supervised, starts=torch.zeros_like(ids), features=features)


def candidates(supervised: Tensor, starts: Tensor) -> Tensor:
    """[R, S - 1] bool: tokens a block may start from."""
    same = starts[:, 1:] == starts[:, :-1]
    return supervised[:, :-1] & supervised[:, 1:] & same


def choose_anchors(uniform: Tensor, eligible: Tensor, count: int) -> Anchors:
    """`count` slots: the eligible tokens with the smallest of the random numbers.

    uniform, eligible [R, S - 1]; without replacement, so that fewer candidates leave dead slots.
    """
    columns = eligible.shape[1]
    scores = uniform.masked_fill(~eligible, 2.0)
    found = scores.topk(min(count, columns), largest=False)
    column = torch.where(found.values < 2.0, found.indices, columns).sort(-1).values
    column = torch.nn.functional.pad(column, (0, count - column.shape[1]), value=columns)
    live = column < columns
    return Anchors(columns=torch.where(live, column, 0), live=live)


def take(values: Tensor, columns: Tensor) -> Tensor:
    """values [R, S, ...] at columns [R, N, B], clamped to the row's last one: [R, N, B, ...]."""
    flat = columns.clamp(max=values.shape[1] - 1).flatten(1)
    index = flat.view(*flat.shape, *([1] * (values.dim() - 2))).expand(-1, -1, *values.shape[2:])
    return values.gather(1, index).view(*columns.shape, *values.shape[2:])
