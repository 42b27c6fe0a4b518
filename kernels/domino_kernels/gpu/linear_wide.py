# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Linear layers of some dozen rows and more: whole tiles of rows and weights come by tensor copies.

The sums are those of domino_kernels.gpu.linear, in the same order; what differs is who computes
addresses. Tiles behind the last row are zeros. A gated tile holds as many ups as gates, read and
multiplied as one; it may be of two parts, so that about as many tiles come out as run at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from domino_kernels.gpu.linear import Tiling
from domino_kernels.rollout_device import after_previous, launch_options

LEAST_ROWS, ROWS = 64, 128  # of a tile


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


@triton.jit
def _put(out, values, m0, n0, rows, N, M: tl.constexpr, B: tl.constexpr):
    """values [M, B] to rows m0 .. and columns n0 .. of out [rows, N]."""
    m, n = m0 + tl.arange(0, M), n0 + tl.arange(0, B)
    there = (m < rows)[:, None] & (n < N)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], values.to(out.dtype.element_ty), there)


@triton.jit
def _silu_mul(acc, M: tl.constexpr, B: tl.constexpr):
    """acc [M, 2 B], gates before ups -> [M, B]."""
    gate, up = tl.split(tl.permute(tl.reshape(acc, (M, 2, B)), (0, 2, 1)))
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit(do_not_specialize=["rows", "steps"])
def _wide_gated_kernel(x, w, w_more, out, rows, N, steps, M: tl.constexpr, BN: tl.constexpr,
                       MORE: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
                       PDL: tl.constexpr):  # fmt: skip
    m0, n0 = tl.program_id(0) * M, tl.program_id(1) * (BN + MORE)
    n1 = n0 + BN
    after_previous(PDL)
    acc = tl.zeros((M, 2 * BN), tl.float32)
    more = tl.zeros((M, 2 * MORE if MORE else 16), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        k0 = step * BK
        values = x.load([m0, k0])
        acc = tl.dot(values, tl.reshape(w.load([0, n0, k0]), (2 * BN, BK)).T, acc,
                     input_precision="ieee")  # fmt: skip
        if MORE:
            more = tl.dot(values, tl.reshape(w_more.load([0, n1, k0]), (2 * MORE, BK)).T, more,
                          input_precision="ieee")  # fmt: skip
    _put(out, _silu_mul(acc, M, BN), m0, n0, rows, N, M, BN)
    if MORE:
        _put(out, _silu_mul(more, M, MORE), m0, n1, rows, N, M, MORE)


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
    """As `linear_gated`, in tiles of `columns` and `more` gates with their ups, which need not fit.

    Rows of x and weight are multiples of 16 bytes.
    """
    (rows, width), features = x.shape, len(weight) // 2
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    both, parts = weight.view(2, features, width), (tiling.columns, tiling.more or tiling.columns)
    tiles = triton.cdiv(features, tiling.columns + tiling.more)
    _wide_gated_kernel[triton.cdiv(rows, tiling.rows), tiles](
        TensorDescriptor.from_tensor(x, [tiling.rows, tiling.depth]),
        *(TensorDescriptor.from_tensor(both, [2, columns, tiling.depth]) for columns in parts),
        out, rows, features, width // tiling.depth, M=tiling.rows, BN=tiling.columns,
        MORE=tiling.more, BK=tiling.depth, STAGES=tiling.stages,
        **launch_options(x, warps=tiling.warps),
    )  # fmt: skip
    return out
