"""A linear layer on a GPU: rows in, parts of the result out, by whichever product is fastest."""

from dataclasses import replace

import torch
from torch import Tensor

from domino_kernels.gpu.linear import Tiling, linear_parts

# As measured fastest on an H200 (benchmarks/gpu_verify_sweep.py): long rows of weights in deep
# pipelines, whole tiles of 128 columns where there are thousands of them.
SHORT = Tiling(columns=64, depth=64, stages=6)
LONG = Tiling(columns=64, depth=128, stages=4, ahead=2)
HUGE = Tiling(columns=128, depth=128, stages=4, warps=8)
ENOUGH = 192  # programs that keep all memory channels busy
MANY = 1024


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
