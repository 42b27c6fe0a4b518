"""Where the weights in training are: whole on every rank, or (training.sharded) a part on each.

Gradients leave here undivided and summed over ranks at the latest by `add_up`, so that the trainer
makes one weighted mean of a whole step. Next: training.trainer.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from training.objective import Objective, Sums
from training.ranks import Ranks
from training.rows import Anchors, Rows


class Holding(Protocol):
    """masters: by name, float32, what this rank's optimizer updates in place."""

    @property
    def masters(self) -> dict[str, Tensor]: ...

    @property
    def captures(self) -> bool:
        """Whether a step's parts may become CUDA graphs."""

    def micro(
        self, objective: Objective, rows: Rows, anchors: Anchors, share: Tensor
    ) -> tuple[list[Tensor], Sums]:
        """A gradient for each of `masters`, and the batch's sums."""

    def add_up(self, shared: Tensor, sums: Tensor) -> None:
        """Sums over ranks what is not summed yet. shared: all gradients and, at its end, `sums`."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Of all gradients, on all ranks."""

    def whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors of parts that are split as `masters`, by their names; all ranks call it."""

    def part(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""


class Replicated:
    """Every rank has everything."""

    captures = True

    def __init__(
        self, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        """dtype: of the products."""
        self.masters = {n: w.to(device) for n, w in weights.items()}
        self._dtype, self._ranks = dtype, ranks

    def micro(
        self, objective: Objective, rows: Rows, anchors: Anchors, share: Tensor
    ) -> tuple[list[Tensor], Sums]:
        leaves = {n: w.detach().to(self._dtype).requires_grad_() for n, w in self.masters.items()}
        sums = objective.sums(leaves, rows, anchors, share)
        return list(torch.autograd.grad(sums.loss, list(leaves.values()))), sums

    def add_up(self, shared: Tensor, sums: Tensor) -> None:
        self._ranks.add_up(shared)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return torch.nn.utils.get_total_norm(gradients)

    def whole(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(parts)

    def part(self, whole: Tensor) -> Tensor:
        return whole
