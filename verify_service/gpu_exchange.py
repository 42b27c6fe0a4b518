"""Sums over the GPUs of a group: each rank's part of some rows in, the new stream and its norm out.

Few rows are read straight from the other GPUs' memory by the norm's own kernel (symmetric memory,
without multicast); many, or where GPUs cannot read each other, go through NCCL. Both add in the
order of ranks, what each rank has rounded: the same bits.
"""

import logging

import torch
import torch.distributed as dist
from torch import Tensor

from domino_kernels.gpu.exchange_norm import exchange_norm
from domino_kernels.gpu.norm import add_rms_norm
from verify_service.ranks import Ranks

ONE_SHOT_BYTES = 4 << 20  # beyond, every rank reading all of it costs more than NCCL's ring

log = logging.getLogger(__name__)


class Exchange:
    """Of rows [n, hidden]; made by all ranks of a group at the same time."""

    def __init__(self, ranks: Ranks, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self._ranks, self._turn, self._most = ranks, 0, 0
        if ranks.size > 1 and device.type == "cuda":
            self._share(ONE_SHOT_BYTES // (hidden * dtype.itemsize), hidden, dtype, device)

    def room(self, rows: int) -> Tensor | None:
        """Where this rank's part of so many rows has to be written; None: anywhere.

        Two places in turn: the others may still read the last one.
        """
        if rows > self._most:
            return None
        self._turn = 1 - self._turn
        return self._shared[self._turn, :rows]

    def gathered(self, part: Tensor) -> Tensor:
        """part [n, hidden], in its `room` where there is one -> what `add_norm` takes."""
        return part[None] if len(part) <= self._most else self._ranks.stacked(part)

    def add_norm(
        self,
        stream: Tensor,
        parts: Tensor | None,
        weight: Tensor,
        eps: float,
        *,
        bias: Tensor | None = None,
        tap: Tensor | None = None,
    ) -> Tensor:
        """As `add_rms_norm` of the parts of all ranks."""
        if parts is None or len(stream) > self._most:
            early = self._ranks.size == 1
            return add_rms_norm(stream, parts, weight, eps, bias=bias, tap=tap, early=early)
        start, rank = int(parts.storage_offset()), self._ranks.rank
        return exchange_norm(
            stream, self._rooms, self._flags, start, rank, weight, eps, bias=bias, tap=tap
        )

    def _share(self, rows: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        try:
            self._shared, self._rooms = _symmetric((2, rows, hidden), dtype, device)
            self._told, self._flags = _symmetric((rows, self._ranks.size), torch.int32, device)
        except RuntimeError as error:
            log.warning("GPUs cannot read each other's memory, sums go through NCCL: %s", error)
        else:
            self._most = rows
        dist.barrier()  # all flags are 0


def _symmetric(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Zeros that every rank has, and the addresses [ranks] of all of them."""
    from torch.distributed import _symmetric_memory as symmetric

    group = dist.group.WORLD
    assert group is not None, "ranks have joined"
    own = symmetric.empty(shape, dtype=dtype, device=device)
    handle = symmetric.rendezvous(own, group.group_name)
    own.zero_()
    torch.cuda.synchronize(device)
    assert handle.buffer_ptrs[handle.rank] == own.data_ptr(), "an allocation of its own"
    return own, torch.tensor(handle.buffer_ptrs, device=device)
