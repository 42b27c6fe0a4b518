"""The newest drafts' projections on a GPU: the one that is used lies where the graphs read."""

from collections.abc import Callable

import torch
from torch import Tensor

from verify_service.gpu_target import GpuTarget
from verify_service.turns import KEPT


class GpuProjections:
    """Copies are kept only once there is more than one."""

    def __init__(self, target: GpuTarget, before: Callable[[], None]) -> None:
        """before: called ahead of each change, writes the rows that are owed by the one in use."""
        self._target, self._before = target, before
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._used = 0

    @torch.inference_mode()
    def add(self, fc: Tensor, norm: Tensor) -> int:
        """As Executor.add_projection."""
        projection = self._target.projection
        assert projection, "a draft is followed only where one was given"
        weight = projection.fc.weight
        if not self._kept:
            self._kept[0] = weight.clone(), projection.norm.clone()
        number = max(self._kept) + 1
        self._kept[number] = fc.to(weight), norm.to(weight)
        self._kept.pop(number - KEPT, None)
        return number

    @torch.inference_mode()
    def use(self, number: int) -> None:
        """As Executor.use_projection."""
        projection = self._target.projection
        if number != self._used and projection:
            self._before()
            fc, norm = self._kept[number]
            projection.fc.weight.copy_(fc)  # in place: the graphs read this memory
            projection.norm.copy_(norm)
            self._used = number
