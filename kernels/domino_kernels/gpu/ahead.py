# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Weights on their way before they are needed: while small kernels run, memory would stand idle."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.device import LINE, prefetch

PROGRAMS, LINES = 128, 512


@triton.jit
def _bring_kernel(weight, total, row_lines, row_stride, LINES: tl.constexpr,
                  PROGRAMS: tl.constexpr):  # fmt: skip
    each: tl.constexpr = LINE * 8 // weight.dtype.element_ty.primitive_bitwidth
    for first in tl.range(tl.program_id(0) * LINES, total, PROGRAMS * LINES):
        line = tl.minimum(first + tl.arange(0, LINES), total - 1)
        row, place = line // row_lines, line % row_lines
        prefetch(weight + row.to(tl.int64) * row_stride + place * each)


class Ahead:
    """Brings weights into the L2 cache beside the kernels launched next, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def bring(self, weight: Tensor, columns: int) -> None:
        """The first `columns` of every row of weight [N, K], once what was launched has run."""
        if self._side is None or columns <= 0:
            return
        lines = min(columns, weight.shape[1]) * weight.element_size() // LINE.value
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            _bring_kernel[(PROGRAMS,)](
                weight, len(weight) * lines, lines, weight.shape[1], LINES=LINES,
                PROGRAMS=PROGRAMS, num_warps=4,
            )  # fmt: skip

    def join(self) -> None:
        """What is launched next waits for all that was brought."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
