"""A linear layer on a GPU: rows in, parts of the result out, by whichever product is fastest."""

from dataclasses import replace

import torch
from torch import Tensor

from domino_kernels.gpu.gated_rows import COLUMNS, fits, gated_rows
from domino_kernels.gpu.linear import Tiling, linear_gated, linear_parts
from domino_kernels.gpu.linear_wide import LEAST_ROWS, ROWS, wide_gated, wide_parts
from domino_kernels.gpu.silu import silu_mul

# As measured fastest on an H200 (benchmarks/gpu_verify_sweep.py): long rows of weights in deep
# pipelines, whole tiles of 128 columns where there are thousands of them.
SHORT = Tiling(columns=64, depth=64, stages=6)
LONG = Tiling(columns=64, depth=128, stages=4, ahead=2)
HUGE = Tiling(columns=128, depth=128, stages=4, warps=8)
ENOUGH = 192  # programs that keep all memory channels busy
MANY = 1024
WAVE = 132  # programs that run at once where one takes all of a multiprocessor's shared memory
LEAST = 128  # programs of the gated product, which has no splits
FIXED_ROWS = (16, 32, 64, 128)


class GpuLinear:
    """x W^T for `weight` [out, in]; `bias` [out] is for the kernel that adds the parts.

    fixed: one product with one order of additions for any number of rows, never cuBLAS.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, fixed: bool = False) -> None:
        self.weight, self.bias, self.fixed = weight.contiguous(), bias, fixed
        features, width = weight.shape
        own = weight.is_cuda and weight.element_size() == 2
        # whose bits are proven to be those of fewer rows
        self._wide = ROWS if fixed else LEAST_ROWS
        if fixed:
            self._tilings = fixed_tilings(features, width, weight.element_size())
        else:
            self._tilings = {
                rows: choose_tiling(features, width, rows) if own else None
                for rows in (16, 32, LEAST_ROWS, ROWS, 2 * ROWS)
            }

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x [n, in] -> [S, n, out], whose sum over S is x W^T without the bias.

        `out` [n, out] holds the result where that is one part.
        """
        tiling = self._tiling(len(x))
        if tiling is None:
            return torch.mm(x, self.weight.T, out=out)[None]
        kept = out[None] if out is not None and tiling.splits == 1 else None
        wide = tiling.rows >= self._wide and tiling.fits(*self.weight.shape)
        product = wide_parts if wide else linear_parts
        return product(x, self.weight, tiling, kept)

    def _tiling(self, rows: int) -> Tiling | None:
        most = next((most for most in self._tilings if rows <= most), None)
        most = most or (max(self._tilings) if self.fixed else None)
        return self._tilings[most] if most else None


class GatedLinear(GpuLinear):
    """silu(gate) * up of x W^T for `weight` [2N, in], gate before up, `bias` [2N]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, fixed: bool = False) -> None:
        GpuLinear.__init__(self, weight, bias, fixed=fixed)
        half, width = len(weight) // 2, weight.shape[1]
        own = weight.is_cuda and weight.element_size() == 2 and bias is None
        whole = own and SHORT.fits(half, width)
        self._gated: dict[int, Tiling] = {}
        tiles = half / COLUMNS
        self._one_wave = own and not fixed and 0.9 * WAVE < tiles <= WAVE and fits(self.weight)
        if whole and fixed:
            self._gated = {n: _of_rows(SHORT, n) for n in FIXED_ROWS}
            self._gated |= {n: t for n, t in wide_gated_tilings(half).items() if n == ROWS}
        elif whole and half // SHORT.columns >= LEAST:
            self._gated = {n: replace(SHORT, rows=n, stages=5) for n in (16, 32)}
            self._gated |= wide_gated_tilings(half)

    def gated(self, x: Tensor) -> Tensor:
        """x [n, in] -> [n, N]."""
        if self._one_wave and ROWS < len(x) <= 2 * ROWS:
            return gated_rows(x, self.weight)
        rows = next((rows for rows in self._gated if len(x) <= rows), None)
        rows = rows or (max(self._gated, default=None) if self.fixed else None)
        if rows and (self.fixed or rows < ROWS or len(x) > LEAST_ROWS):
            product = wide_gated if rows >= self._wide else linear_gated
            return product(x, self.weight, self._gated[rows])
        return silu_mul(self(x), x.dtype, self.bias)


def wide_gated_tilings(half: int) -> dict[int, Tiling]:
    """For a product of `half` gates and ups, by rows: as many tiles as run at once, or two each."""
    tiles = half / 96
    if tiles <= WAVE and tiles > 0.9 * WAVE:
        few = replace(SHORT, rows=LEAST_ROWS, more=32)
        return {LEAST_ROWS: few, ROWS: replace(few, rows=ROWS, stages=4)}
    return {ROWS: replace(SHORT, rows=ROWS, stages=3)} if half // 64 <= 2 * WAVE else {}


def choose_tiling(features: int, width: int, rows: int) -> Tiling | None:
    """How to run a layer [features, width] on up to 16, 32, 64, 128 or 256 rows; None: by cuBLAS.

    From 33 rows on cuBLAS is ahead wherever a layer has tiles enough of its own.
    """
    tiles = features // 64
    at_once = 2 * tiles <= WAVE
    if rows > ROWS:
        whole = replace(LONG, rows=ROWS)  # few input columns: one part is less to add up
        found = replace(SHORT, rows=ROWS, columns=128, splits=2) if width > 4096 else whole
        return found if at_once and found.fits(features, width) else None
    if rows == ROWS:
        found = replace(LONG, rows=rows, splits=2)
        return found if at_once and found.fits(features, width) else None
    if tiles > MANY:
        found = replace(HUGE, rows=rows)
    elif rows == LEAST_ROWS:
        found = replace(LONG, rows=rows, splits=2, stages=5 if at_once else 3)
        return found if tiles <= 96 and found.fits(features, width) else None
    elif tiles < 96:
        found = replace(LONG, rows=rows, splits=4)
    else:
        found = replace(SHORT, rows=rows, splits=1 if tiles >= ENOUGH else 2)
    return found if found.fits(features, width) else None


def fixed_tilings(features: int, width: int, element_size: int) -> dict[int, Tiling | None]:
    """The same columns, depth and splits for every number of rows: the same sums in every row.

    The tile's rows differ, which are the narrow operand: no sum runs over them.
    """
    if element_size > 2:
        return {16: Tiling(columns=32, depth=32, stages=2)}
    tiles = features // 64
    if tiles > MANY and HUGE.fits(features, width):
        return {n: _of_rows(HUGE, n) for n in FIXED_ROWS}
    splits = 1 if tiles >= ENOUGH else 2 if tiles >= ENOUGH // 2 else 4
    base = next(
        (
            found
            for kind in (LONG, SHORT)
            for count in (splits, 3, 2, 1)
            if (found := replace(kind, splits=count)).fits(features, width)
        ),
        SHORT,
    )
    return {n: _of_rows(base, n) for n in FIXED_ROWS}


def _of_rows(tiling: Tiling, rows: int) -> Tiling:
    """The tiling for so many rows, within a multiprocessor's shared memory."""
    if rows == ROWS:  # as wide products are fastest, two of short tiles on a multiprocessor
        return replace(tiling, rows=rows, stages=4 if tiling.columns * tiling.depth == 8192 else 3)
    stages = min(tiling.stages, 5 if rows <= 32 else 4)
    return replace(tiling, rows=rows, stages=stages, warps=8 if rows > 32 else tiling.warps)
