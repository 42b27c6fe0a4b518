"""Data parallel training: which share of every step is ours, and the sum over all shares.

Ranks add up gradients and the loss's denominator, undivided, so that many ranks make the step that
one with as many micro-batches would make.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ranks:
    """count processes, of which this is `rank`; each trains its own micro-batches."""

    rank: int = 0
    count: int = 1

    def add_up(self, shared: Tensor) -> None:
        """Replaces `shared` by its sum over all ranks."""
        if self.count > 1:
            dist.all_reduce(shared)

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        found: list[int | None] = [number] * self.count
        if self.count > 1:
            dist.all_gather_object(found, number)
        return min(n for n in found if n is not None)


ONE_RANK = Ranks()


def join(device: torch.device) -> Ranks:
    """The ranks that torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...) name; else one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ONE_RANK
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(dist.get_rank(), count)
