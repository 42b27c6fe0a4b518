# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Linear layers of about a hundred rows: whole tiles of rows and weights come by tensor copies.

The sums are those of domino_kernels.gpu.linear, in the same order; what differs is who computes
addresses. Tiles behind the last row are zeros.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from domino_kernels.gpu.linear import Tiling
from domino_kernels.rollout_device import after_previous, launch_options

ROWS = 128  # of a tile


@triton.jit(do_not_specialize=["rows", "steps"])
def _wide_kernel(x, w, out, rows, N, steps, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 STAGES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    m0, n0, split = tl.program_id(0) * M, tl.program_id(1) * BN, tl.program_id(2)
    after_previous(PDL)
    acc = tl.zeros((BN, M), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        k0 = (split * steps + step) * BK
        weights, values = w.load([n0, k0]), x.load([m0, k0])
        acc = tl.dot(weights, values.T, acc, input_precision="ieee")
    m, n = m0 + tl.arange(0, M), n0 + tl.arange(0, BN)
    to = out + (split * rows + m[:, None]) * N + n[None, :]
    tl.store(to, tl.trans(acc).to(out.dtype.element_ty), (m < rows)[:, None])


@triton.jit(do_not_specialize=["rows", "steps"])
def _wide_gated_kernel(x, w, out, rows, N, steps, M: tl.constexpr, BN: tl.constexpr,
                       BK: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    m0, n0 = tl.program_id(0) * M, tl.program_id(1) * BN
    after_previous(PDL)
    gate, up = tl.zeros((BN, M), tl.float32), tl.zeros((BN, M), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        k0 = step * BK
        gates, ups, values = w.load([n0, k0]), w.load([n0 + N, k0]), x.load([m0, k0])
        gate = tl.dot(gates, values.T, gate, input_precision="ieee")
        up = tl.dot(ups, values.T, up, input_precision="ieee")
    value = tl.trans(gate / (1.0 + tl.exp(-gate)) * up)
    m, n = m0 + tl.arange(0, M), n0 + tl.arange(0, BN)
    to = out + m[:, None] * N + n[None, :]
    tl.store(to, value.to(out.dtype.element_ty), (m < rows)[:, None])


def wide_parts(x: Tensor, weight: Tensor, tiling: Tiling, out: Tensor | None = None) -> Tensor:
    """As `linear_parts`; the tiling must fit, rows of x and weight be multiples of 16 bytes."""
    (rows, width), features = x.shape, len(weight)
    if out is None:
        kept = torch.float32 if tiling.splits > 1 else x.dtype
        out = torch.empty(tiling.splits, rows, features, dtype=kept, device=x.device)
    steps = width // (tiling.depth * tiling.splits)
    _wide_kernel[triton.cdiv(rows, tiling.rows), features // tiling.columns, tiling.splits](
        TensorDescriptor.from_tensor(x, [tiling.rows, tiling.depth]),
        TensorDescriptor.from_tensor(weight, [tiling.columns, tiling.depth]),
        out, rows, features, steps, M=tiling.rows, BN=tiling.columns, BK=tiling.depth,
        STAGES=tiling.stages, **launch_options(x, warps=tiling.warps),
    )  # fmt: skip
    return out


def wide_gated(x: Tensor, weight: Tensor, tiling: Tiling) -> Tensor:
    """As `linear_gated`."""
    (rows, width), features = x.shape, len(weight) // 2
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    _wide_gated_kernel[triton.cdiv(rows, tiling.rows), features // tiling.columns](
        TensorDescriptor.from_tensor(x, [tiling.rows, tiling.depth]),
        TensorDescriptor.from_tensor(weight, [tiling.columns, tiling.depth]),
        out, rows, features, width // tiling.depth, M=tiling.rows, BN=tiling.columns,
        BK=tiling.depth, STAGES=tiling.stages, **launch_options(x, warps=tiling.warps),
    )  # fmt: skip
    return out
