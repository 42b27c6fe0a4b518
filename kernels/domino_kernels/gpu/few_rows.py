"""A linear layer on a GPU: rows in, parts of the result out, by whichever product is fastest."""

from dataclasses import replace

import torch
from torch import Tensor

from domino_kernels.gpu.linear import Tiling, linear_gated, linear_parts
from domino_kernels.gpu.silu import silu_mul

# As measured fastest on an H200 (benchmarks/gpu_verify_sweep.py): long rows of weights in deep
# pipelines, whole tiles of 128 columns where there are thousands of them.
SHORT = Tiling(columns=64, depth=64, stages=6)
LONG = Tiling(columns=64, depth=128, stages=4, ahead=2)
HUGE = Tiling(columns=128, depth=128, stages=4, warps=8)
ENOUGH = 192  # programs that keep all memory channels busy
MANY = 1024
LEAST = 128  # programs of the gated product, which has no splits


class GpuLinear:
    """x W^T for `weight` [out, in]; `bias` [out] is for the kernel that adds the parts."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight.contiguous(), bias
        features, width = weight.shape
        own = weight.is_cuda and weight.element_size() == 2
        self._tilings = {
            rows: choose_tiling(features, width, rows) if own else None for rows in (16, 32, 64)
        }

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, in] -> [S, n, out], whose sum over S is x W^T without the bias."""
        rows = next((rows for rows in self._tilings if len(x) <= rows), None)
        tiling = self._tilings[rows] if rows else None
        return linear_parts(x, self.weight, tiling) if tiling else torch.mm(x, self.weight.T)[None]


class GatedLinear(GpuLinear):
    """silu(gate) * up of x W^T for `weight` [2N, in], gate before up, `bias` [2N]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        GpuLinear.__init__(self, weight, bias)
        half, width = len(weight) // 2, weight.shape[1]
        own = weight.is_cuda and weight.element_size() == 2 and bias is None
        fits = own and SHORT.fits(half, width) and half // SHORT.columns >= LEAST
        self._gated = {n: replace(SHORT, rows=n, stages=5) for n in (16, 32)} if fits else {}

    def gated(self, x: Tensor) -> Tensor:
        """x [n, in] -> [n, N]."""
        rows = next((rows for rows in self._gated if len(x) <= rows), None)
        if rows:
            return linear_gated(x, self.weight, self._gated[rows])
        return silu_mul(self(x), x.dtype, self.bias)


def choose_tiling(features: int, width: int, rows: int) -> Tiling | None:
    """How to run a layer [features, width] on up to 16, 32 or 64 rows; None: by cuBLAS."""
    tiles = features // 64
    if tiles > MANY:
        found = replace(HUGE, rows=rows)
    elif rows > 32:  # cuBLAS is ahead wherever a layer has tiles enough of its own
        found = replace(LONG, rows=rows, warps=8, splits=2)
        return found if tiles < 96 and found.fits(features, width) else None
    elif tiles < 96:
        found = replace(LONG, rows=rows, splits=4)
    else:
        found = replace(SHORT, rows=rows, splits=1 if tiles >= ENOUGH else 2)
    return found if found.fits(features, width) else None
