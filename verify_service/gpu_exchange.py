"""Sums over the GPUs of a group: each rank's part of some rows in, the parts or their sum out.

Few rows are read straight from the other GPUs' memory by one kernel (symmetric memory, without
multicast); many, or where GPUs cannot read each other, go through NCCL.
"""

import logging

import torch
import torch.distributed as dist
from torch import Tensor

from verify_service.ranks import Ranks

ONE_SHOT_BYTES = 4 << 20  # beyond, every rank reading all of it costs more than NCCL's ring

log = logging.getLogger(__name__)


class Exchange:
    """Of rows [n, hidden]; made by all ranks of a group at the same time.

    fixed: one way for any number of rows, since the two round differently.
    """

    def __init__(
        self, ranks: Ranks, hidden: int, dtype: torch.dtype, device: torch.device, *, fixed: bool
    ) -> None:
        self._ranks, self._shared = ranks, torch.empty(0, hidden, dtype=dtype, device=device)
        self._group = ""
        if ranks.size > 1 and device.type == "cuda" and not fixed:
            self._share(ONE_SHOT_BYTES // (hidden * dtype.itemsize))

    def room(self, rows: int) -> Tensor | None:
        """Where `total` wants this rank's part of so many rows; None: anywhere."""
        return self._shared[:rows] if rows <= len(self._shared) else None

    def total(self, part: Tensor) -> Tensor:
        """part [n, hidden], in `room` where there is some -> [S, n, hidden], whose sum is meant."""
        if self._ranks.size == 1:
            return part[None]
        if part.data_ptr() != self._shared.data_ptr():
            return self._ranks.stacked(part)
        summed: Tensor = torch.ops.symm_mem.one_shot_all_reduce(part, "sum", self._group)
        return summed[None]

    def _share(self, rows: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        like, group = self._shared, dist.group.WORLD
        assert group is not None, "ranks have joined"
        try:
            shared = symmetric.empty((rows, like.shape[1]), dtype=like.dtype, device=like.device)
            symmetric.rendezvous(shared, group.group_name)
        except RuntimeError as error:
            log.warning("GPUs cannot read each other's memory, sums go through NCCL: %s", error)
        else:
            self._shared, self._group = shared, group.group_name
