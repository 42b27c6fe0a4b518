"""The part of the vocabulary that a loss ranges over: its most frequent labels, and their rows.

The head is most of a step's work. All rows of the vocabulary stay in the draft and are used when
serving; those outside of the part only get no gradient.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from training.dataset import PackedRows
from training.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """ids [n] int64, ascending. places [V] int64: of each id among them, -1 outside. lm_head
    [n, H]: the frozen head's rows of these ids."""

    ids: Tensor
    places: Tensor
    lm_head: Tensor

    @classmethod
    def most_frequent(cls, count: int, packed: PackedRows, lm_head: Tensor, ranks: Ranks) -> Self:
        """The `count` ids that are predicted most often in all ranks' data; lowest ids on ties."""
        size, device = len(lm_head), lm_head.device
        labels = packed.ids[packed.supervised].to(torch.int64)
        counts = torch.bincount(labels, minlength=size).to(device, torch.float64)
        ranks.add_up(counts)
        ids = counts.argsort(descending=True, stable=True)[:count].sort().values
        places = torch.full((size,), -1, device=device)
        places[ids] = torch.arange(len(ids), device=device)
        return cls(ids=ids, places=places, lm_head=lm_head[ids])

    def labels(self, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Labels [...] as places, and their weights [...]; what is outside does not count."""
        places = self.places[ids]
        return places.clamp(min=0), weight * (places >= 0)
