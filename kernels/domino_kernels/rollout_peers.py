"""Slots for the ranks' best keys in every rank's own memory, which all ranks write into directly.

One half is used by a run while the other, the next run's, is emptied: a rank that is ahead can
write for the next run as soon as this one's keys have all come, not before.
"""

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

EMPTY = -1  # a slot nobody has written yet: all ones

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


def shared_keys(size: int, group: dist.ProcessGroup, device: torch.device) -> PeerKeys | None:
    """Made by all ranks of a group at once; None where GPUs cannot reach each other's memory."""
    from torch.distributed import _symmetric_memory as symmetric

    try:
        own = symmetric.empty((2, size), dtype=torch.int64, device=device)
        pointers = symmetric.rendezvous(own, group.group_name).buffer_ptrs
    except RuntimeError as error:
        log.warning("GPUs cannot reach each other's memory, keys go through NCCL: %s", error)
        return None
    keys = PeerKeys(own, pointers, dist.get_rank(group))
    torch.cuda.synchronize(device)
    dist.barrier(group)
    return keys
