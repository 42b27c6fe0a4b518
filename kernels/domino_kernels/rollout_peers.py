"""Memory that all GPUs of a group reach: slots for best keys, parts of sums.

Slots: every rank writes into every rank's. One half is used by a run while the other, the next
run's, is emptied: a rank that is ahead can write for the next run as soon as this one's keys have
all come, not before.
"""

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

EMPTY = -1  # a slot nobody has written yet: all ones
ONE_SHOT_BYTES = 4 << 20  # beyond, every rank reading all parts costs more than NCCL

log = logging.getLogger(__name__)


class PeerKeys:
    """own [2, size] int64: this rank's slots; pointers: to every rank's, in their order."""

    def __init__(self, own: Tensor, pointers: Sequence[int], rank: int) -> None:
        self.own, self.pointers, self.rank = own.fill_(EMPTY), tuple(pointers), rank
        self.turn = torch.zeros(1, dtype=torch.int32, device=own.device)
        self._other = torch.ones(1, dtype=torch.int64, device=own.device)

    def advance(self) -> None:
        """Turns to the half that the last run left empty, and empties the other."""
        self.turn.bitwise_xor_(1)
        self._other.bitwise_xor_(1)
        self.own.index_fill_(0, self._other, EMPTY)


class PeerSums:
    """float32 parts, whose sum every rank reads straight from all ranks' memory."""

    def __init__(self, own: Tensor, group: dist.ProcessGroup) -> None:
        self.own, self._group = own, group

    def total(self, part: Tensor) -> Tensor | None:
        """part, the first values of `own`, of one shape on every rank -> the sum over the ranks;
        None where NCCL is faster, or the values are no whole words of 16 bytes."""
        if part.nbytes % 16 or part.nbytes > ONE_SHOT_BYTES:
            return None
        summed: Tensor = torch.ops.symm_mem.one_shot_all_reduce(
            part.flatten(), "sum", self._group.group_name
        )
        return summed.view(part.shape)


def shared_sums(size: int, group: dist.ProcessGroup, device: torch.device) -> PeerSums | None:
    """Made by all ranks of a group at once; None where GPUs cannot reach each other's memory."""
    found = _symmetric((size,), torch.float32, group, device)
    return PeerSums(found[0], group) if found else None


def shared_keys(size: int, group: dist.ProcessGroup, device: torch.device) -> PeerKeys | None:
    """Made by all ranks of a group at once; None where GPUs cannot reach each other's memory."""
    found = _symmetric((2, size), torch.int64, group, device)
    if found is None:
        return None
    keys = PeerKeys(*found, dist.get_rank(group))
    torch.cuda.synchronize(device)
    dist.barrier(group)
    return keys


def _symmetric(
    shape: tuple[int, ...], dtype: torch.dtype, group: dist.ProcessGroup, device: torch.device
) -> tuple[Tensor, list[int]] | None:
    """Memory of this rank, and where every rank's is, as this one reaches it."""
    if device.type != "cuda":
        return None
    from torch.distributed import _symmetric_memory as symmetric

    try:
        own = symmetric.empty(shape, dtype=dtype, device=device)
        return own, symmetric.rendezvous(own, group.group_name).buffer_ptrs
    except RuntimeError as error:
        log.warning("GPUs cannot reach each other's memory, NCCL takes its place: %s", error)
        return None
