# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""A layer's parts in, their sum out: what one rank has to tell the others."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.device import summed
from domino_kernels.rollout_device import after_previous, launch_options

BLOCK = 1024


@triton.jit
def _add_kernel(parts, out, size, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    after_previous(PDL)
    total = summed(parts, at, at < size, size, PARTS)
    tl.store(out + at, total.to(out.dtype.element_ty), at < size)


def add_parts(parts: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """parts [S, n, N] -> [n, N] in `dtype`, added in their order; in `out`, or where they are."""
    if len(parts) == 1 and parts.dtype == dtype:
        same = out is None or parts.data_ptr() == out.data_ptr()
        return parts[0] if same or out is None else out.copy_(parts[0])
    if out is None:
        out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    size = out.numel()
    _add_kernel[(triton.cdiv(size, BLOCK),)](
        parts, out, size, BLOCK=BLOCK, PARTS=len(parts), **launch_options(parts, warps=4)
    )
    return out


def add_parts_reference(parts: Tensor) -> Tensor:
    """float32 [n, N]."""
    return parts.float().sum(0)
