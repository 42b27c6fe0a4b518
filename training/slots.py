"""Which slots of a block go through the vocabulary: early ones always, late ones in turn.

The head is most of a step's work and late slots seldom decide anything. A late slot is scored in
one of `every` blocks, chosen by the anchor's column, and then counts that many times.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSlots:
    """always: the first slots, scored in every block; every: of the later ones, one in so many."""

    block_size: int
    always: int
    every: int

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return self.always >= self.block_size or self.every == 1

    def index(self, columns: Tensor) -> Tensor:
        """Anchors' columns [R, N] -> the slots scored [R, N, M]."""
        device = columns.device
        first = torch.arange(self.always, device=device).expand(*columns.shape, -1)
        later = torch.arange(self.always, self.block_size, self.every, device=device)
        later = later + (columns % self.every)[..., None]
        return torch.cat([first, later], -1)

    def weights(self, device: torch.device) -> Tensor:
        """How often each scored slot counts [M]."""
        count = self.always + (self.block_size - self.always) // self.every
        late = torch.arange(count, device=device) >= self.always
        return 1.0 + (self.every - 1) * late


def pick(values: Tensor, index: Tensor) -> Tensor:
    """values [R, N, B, ...] at slots [R, N, M] -> [R, N, M, ...]."""
    tail = values.shape[3:]
    where = index.view(*index.shape, *([1] * len(tail))).expand(*index.shape, *tail)
    return values.gather(2, where)
