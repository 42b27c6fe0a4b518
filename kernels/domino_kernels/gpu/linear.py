# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Linear layers of few rows, bound by reading the weights: rows in, parts of the result out.

The weights are the left operand, so that a tile of a few rows wastes no matrix-unit work, and the
input's width is split where the output has too few tiles to keep every multiprocessor reading.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.device import LINE, prefetch
from domino_kernels.rollout_device import after_previous, launch_options


@triton.jit(do_not_specialize=["rows", "steps"])
def _linear_kernel(x, w, out, rows, N, K, steps, M: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
                   AHEAD: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    m = tl.program_id(2) * M + tl.arange(0, M)
    k = split * (steps * BK) + tl.arange(0, BK)
    w_at = w + n.to(tl.int64)[:, None] * K + k[None, :]
    if AHEAD > 0 and PDL:  # the weights are no other kernel's result: they may come early
        part: tl.constexpr = w.dtype.element_ty.primitive_bitwidth // 8
        line = tl.arange(0, BK * part // LINE) * (LINE // part)
        for step in tl.static_range(AHEAD):
            at = split * (steps * BK) + step * BK + line
            prefetch(w + n.to(tl.int64)[:, None] * K + at[None, :])
    after_previous(PDL)
    x_at = x + m[None, :] * K + k[:, None]
    acc = tl.zeros((BN, M), tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        if EVEN:
            weights = tl.load(w_at + step * BK)
            values = tl.load(x_at + step * BK, (m < rows)[None, :], 0.0)
        else:
            inside = k + step * BK < K
            weights = tl.load(w_at + step * BK, (n < N)[:, None] & inside[None, :], 0.0)
            values = tl.load(x_at + step * BK, (m < rows)[None, :] & inside[:, None], 0.0)
        acc = tl.dot(weights, values, acc, input_precision="ieee")
    to = out + (split * rows + m[None, :]) * N + n[:, None]
    tl.store(to, acc.to(out.dtype.element_ty), (m < rows)[None, :] & (n < N)[:, None])


@triton.jit(do_not_specialize=["rows", "steps"])
def _gated_kernel(x, w, out, rows, N, K, steps, M: tl.constexpr, BN: tl.constexpr,
                  BK: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m, k = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, BK)
    gate_at = w + n.to(tl.int64)[:, None] * K + k[None, :]
    up_at = w + (n + N).to(tl.int64)[:, None] * K + k[None, :]
    x_at = x + m[None, :] * K + k[:, None]
    gate, up = tl.zeros((BN, M), tl.float32), tl.zeros((BN, M), tl.float32)
    after_previous(PDL)
    for step in tl.range(0, steps, num_stages=STAGES):
        values = tl.load(x_at + step * BK, (m < rows)[None, :], 0.0)
        gate = tl.dot(tl.load(gate_at + step * BK), values, gate, input_precision="ieee")
        up = tl.dot(tl.load(up_at + step * BK), values, up, input_precision="ieee")
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + m[None, :] * N + n[:, None], value.to(out.dtype.element_ty),
             (m < rows)[None, :])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """One way to run a layer: output columns and input columns a tile, pieces of the input's width.

    ahead: tiles of weights brought to the L2 cache while the kernel before still runs. more: output
    columns of a second part of a tile, of gated products by tensor copies only.
    """

    columns: int = 64
    depth: int = 128
    splits: int = 1
    stages: int = 4
    warps: int = 4
    ahead: int = 0
    rows: int = 16
    more: int = 0

    def fits(self, out_features: int, in_features: int) -> bool:
        """Whether no tile hangs over the edge of a weight of that shape."""
        return not (out_features % self.columns or in_features % (self.depth * self.splits))


def linear_parts(x: Tensor, weight: Tensor, tiling: Tiling, out: Tensor | None = None) -> Tensor:
    """x [n, K], weight [N, K] -> [splits, n, N], whose sum over splits is x W^T.

    float32 where several parts are to be added, x's dtype where one is all; `out` may hold them.
    """
    (rows, width), features = x.shape, len(weight)
    if out is None:
        kept = torch.float32 if tiling.splits > 1 else x.dtype
        out = torch.empty(tiling.splits, rows, features, dtype=kept, device=x.device)
    steps = triton.cdiv(width, tiling.depth * tiling.splits)
    grid = triton.cdiv(features, tiling.columns), tiling.splits, triton.cdiv(rows, tiling.rows)
    _linear_kernel[grid](
        x, weight, out, rows, features, width, steps, M=tiling.rows, BN=tiling.columns,
        BK=tiling.depth, STAGES=tiling.stages, EVEN=tiling.fits(features, width),
        AHEAD=min(tiling.ahead, steps), **launch_options(x, warps=tiling.warps),
    )  # fmt: skip
    return out


def linear_gated(x: Tensor, weight: Tensor, tiling: Tiling) -> Tensor:
    """x [n, K], weight [2N, K], gate before up -> silu(gate) * up [n, N].

    The tiling must fit [N, K] and has no splits.
    """
    (rows, width), features = x.shape, len(weight) // 2
    assert tiling.splits == 1 and tiling.fits(features, width), f"{tiling} for {weight.shape}"
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    _gated_kernel[features // tiling.columns, triton.cdiv(rows, tiling.rows)](
        x, weight, out, rows, features, width, width // tiling.depth, M=tiling.rows,
        BN=tiling.columns, BK=tiling.depth, STAGES=tiling.stages,
        **launch_options(x, warps=tiling.warps),
    )  # fmt: skip
    return out


def linear_reference(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in float64."""
    return x.double() @ weight.double().T
