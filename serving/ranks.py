"""The processes that hold one model together, and what they exchange within a step.

Every rank runs the same passes over the same work; sums are added in the order of ranks, so that
all ranks see the same bits, whatever the number of rows.
"""

import atexit
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from serving.options import OptionError

LETTING_GO_S = 0.2


@dataclass(frozen=True, slots=True)
class Ranks:
    """`size` processes, of which this is `rank`."""

    rank: int = 0
    size: int = 1

    def share(self, total: int) -> slice:
        """This rank's part of `total` things, which need not divide."""
        each, more = divmod(total, self.size)
        first = self.rank * each + min(self.rank, more)
        return slice(first, first + each + (self.rank < more))

    def stacked(self, x: Tensor) -> Tensor:
        """x of every rank: [size, *x.shape]."""
        if self.size == 1:
            return x[None]
        out = x.new_empty(self.size, *x.shape)
        if x.numel():
            dist.all_gather_into_tensor(out.view(-1, *x.shape[1:]), x.contiguous())
        return out

    def total(self, x: Tensor) -> Tensor:
        """The sum over ranks, in their order."""
        if self.size == 1:
            return x
        first, *others = self.stacked(x).unbind(0)
        for other in others:
            first = first + other
        return first

    def highest(self, keys: Tensor) -> Tensor:
        """Elementwise maximum over ranks, in place."""
        if self.size > 1 and keys.numel():
            dist.all_reduce(keys, dist.ReduceOp.MAX)
        return keys

    def least(self, number: int, device: torch.device) -> int:
        """The least of all ranks' numbers."""
        return -int(self.highest(torch.tensor([-number], device=device)))


ALONE = Ranks()


def place(environment: Mapping[str, str] = os.environ) -> Ranks:
    """The rank that torchrun's variables (RANK, WORLD_SIZE) name; else the only one."""
    try:
        found = Ranks(int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1")))
    except ValueError:
        found = Ranks(0, 0)
    if not 0 <= found.rank < found.size:
        value = f"{environment.get('RANK')} of {environment.get('WORLD_SIZE')}"
        raise OptionError("RANK", value, "must be below WORLD_SIZE; unset both for one process")
    return found


def own_device(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """`cuda` becomes this rank's own GPU of its host (LOCAL_RANK); others stay."""
    ranked = name == "cuda" and place(environment).size > 1
    return f"cuda:{environment.get('LOCAL_RANK', environment.get('RANK'))}" if ranked else name


def join(device: torch.device) -> Ranks:
    """This process' rank, connected to the others (MASTER_ADDR, MASTER_PORT).

    The only one, where the ranks are those of another service in this process.
    """
    ranks = place()
    if ranks.size == 1 or dist.is_initialized():
        return ALONE
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        else:
            join_on_cpus()
    except (ValueError, RuntimeError) as error:
        remedy = f"is not reached by rank {ranks.rank} of {ranks.size}: {error}"
        value = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise OptionError("MASTER_ADDR", value, remedy) from None
    return ranks


def join_on_cpus() -> None:
    """Raises ValueError or RuntimeError, as torch does."""
    dist.init_process_group("gloo")
    atexit.register(leave_gloo)


def leave_gloo() -> None:
    """For the exit of a process: leaves the group while Python still runs.

    gloo's threads let go of the tensors that they sent behind the caller's back. One that does so
    while the interpreter ends, aborts the process (PyThread_exit_thread, before Python 3.14). The
    group's end waits for them, unless something still holds it, as FSDP's caches do: hence time.
    """
    dist.destroy_process_group()
    time.sleep(LETTING_GO_S)
