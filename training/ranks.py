"""Data parallel training: which share of every step is ours, and the sum over all shares.

Ranks add up gradients and the loss's denominator, undivided, so that many ranks make the step that
one with as many micro-batches would make.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from serving.ranks import join_on_cpus


@dataclass(frozen=True, slots=True)
class Ranks:
    """count processes, of which this is `rank`; each trains its own micro-batches.

    own_rows: each holds documents of its own, so that all their features fit; else all hold the
    same and take turns.
    """

    rank: int = 0
    count: int = 1
    own_rows: bool = False

    def turn(self, number: int) -> int:
        """Which of the micro-batches of its documents is this rank's one of that number."""
        return number if self.own_rows else number * self.count + self.rank

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


def place() -> Ranks:
    """The rank that torchrun's variables (RANK, WORLD_SIZE) name; else the only one."""
    return Ranks(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def own_device(name: str) -> str:
    """torch's name of this rank's device: with several GPUs on a host, each has its own."""
    local = os.environ.get("LOCAL_RANK")
    if name != "cuda" or local is None:
        return name
    torch.cuda.set_device(int(local))
    return f"cuda:{local}"


def join(device: torch.device) -> Ranks:
    """The same, connected to the others (MASTER_ADDR, MASTER_PORT)."""
    found = place()
    if found.count == 1:
        return ONE_RANK
    if device.type == "cuda":
        dist.init_process_group("nccl")
    else:
        join_on_cpus()
    return found
