"""A draft step that begins right behind the verify step it follows, on the same device.

What was verified goes from kernel to kernel; the host hears of it later, and whether this step is
then the one that is asked for.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from domino_kernels.gpu.hand_over import Verified
from domino_kernels.readback import Readback
from draft_service.executor import Part
from draft_service.gpu_model import GpuDraft
from draft_service.gpu_step import Step


def compile_begin(step: Step, model: GpuDraft) -> None:
    """So that the first step that begins early does not wait for a compiler; nothing is taken."""
    out = torch.zeros(1, 3, dtype=torch.int32, device=model.device)
    out[:, 0] = -1
    place = torch.zeros(1, dtype=torch.int32, device=model.device)
    rows = torch.zeros(1, model.config.hidden_size, dtype=model.dtype, device=model.device)
    step.bucket.take_over([], Verified(out=out, positions=place, slots=place, rows=rows))


class BegunStep:
    """Launched when made: rows that `verified` commits are appended, and blocks follow them.

    parts: as they stand before; `ids` [batch, count] will hold the proposals on the device.
    """

    def __init__(self, step: Step, parts: Sequence[Part], verified: Verified) -> None:
        told = step.bucket.take_over(parts, verified)
        self._told = Readback(told[: len(parts)])
        self.ids: Tensor = step.replay()[: len(parts)]
        self._found = Readback(self.ids)

    @cached_property
    def taken(self) -> list[tuple[int, int]]:
        """Rows appended and the current token of each part; 0 rows where one was no number."""
        return [
            (count if all(sound) else 0, current) for count, current, *sound in self._told.rows()
        ]

    @cached_property
    def proposals(self) -> list[list[int]]:
        """Of each part; waits for the device."""
        return self._found.rows()
