# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""The gate and up projection in, silu(gate) * up out."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.gpu.device import summed
from domino_kernels.rollout_device import after_previous, launch_options

BLOCK = 1024


@triton.jit
def _silu_kernel(parts, bias, out, part_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                 PARTS: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = k < WIDTH
    after_previous(PDL)
    at = row * (2 * WIDTH) + k
    gate = summed(parts, at, inside, part_stride, PARTS)
    up = summed(parts, at + WIDTH, inside, part_stride, PARTS)
    if BIAS:
        gate += tl.load(bias + k, inside, 0.0).to(tl.float32)
        up += tl.load(bias + WIDTH + k, inside, 0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + k, value.to(out.dtype.element_ty), inside)


def silu_mul(parts: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """parts [S, n, 2I], gate before up -> [n, I] in `dtype`; bias [2I]."""
    count, n, width = parts.shape
    out = torch.empty(n, width // 2, dtype=dtype, device=parts.device)
    _silu_kernel[n, triton.cdiv(width // 2, BLOCK)](
        parts, parts if bias is None else bias, out, n * width, WIDTH=width // 2, BLOCK=BLOCK,
        PARTS=count, BIAS=bias is not None, **launch_options(parts, warps=4),
    )  # fmt: skip
    return out


def silu_mul_reference(parts: Tensor) -> Tensor:
    """parts [S, n, 2I] -> float32 [n, I]."""
    gate, up = parts.float().sum(0).chunk(2, dim=-1)
    return F.silu(gate) * up
