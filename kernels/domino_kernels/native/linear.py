"""A float32 linear layer whose weights are packed tile by tile, in bfloat16 where that is exact.

Or in 8 bits, where near is enough: a draft's.
"""

import ctypes
import mmap

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.native.library import library
from domino_kernels.native.pool import pool

TILE = 32
LANES = 16
FOUR = 4  # inputs of 8 bits that are multiplied at once
FULL, HALF, INT8 = range(3)  # of linear.h
HUGE_PAGE = 1 << 21


class LinearStruct(ctypes.Structure):
    """`linear` of linear.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("kind", ctypes.c_int),
    )


class NativeLinear:
    """y = x W^T + b in float32: `weight` [out, in], `bias` [out]; any number of rows.

    Weights that bfloat16 holds without loss, as those of most checkpoints, are kept in it: half
    the bytes to read a step, and widened in registers to the same float32 values.
    int8: weights and rows are rounded to 8 bits, an output's and a row's by a scale of its own.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, int8: bool = False) -> None:
        self._bias = None if bias is None else bias.contiguous()
        self._scale: Tensor | None = None
        self._start: Tensor | None = None
        if int8:
            self._weight, self._scale, self._start = _packed_int8(weight)
        else:
            self._weight = _packed(weight)
        self.struct = LinearStruct(
            self._weight.data_ptr(),
            *(None if t is None else t.data_ptr() for t in (self._bias, self._scale, self._start)),
            weight.shape[1],
            weight.shape[0],
            INT8 if int8 else HALF if self._weight.dtype == torch.bfloat16 else FULL,
        )
        loaded = library()
        assert loaded is not None, "made only where the library is"
        self._call = loaded.domino_linear

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """x [n, in] float32 -> [n, out], added to the contiguous `onto` where there is one."""
        x = x.contiguous()
        y = x.new_empty(len(x), self.struct.outputs) if onto is None else onto
        own, add = ctypes.byref(self.struct), onto is not None
        self._call(pool(), own, pointer(x), pointer(y), len(x), add)
        return y


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Where a contiguous tensor's elements are; the tensor has to outlive the call."""
    return ctypes.c_void_p(tensor.data_ptr())


def _packed(weight: Tensor) -> Tensor:
    """[out, in] -> [tiles, in, TILE], the outputs behind the last one zero.

    In bfloat16 outputs i and i + 16 of a tile are neighbours: one 32-bit lane holds both, and each
    is widened by a single operation.
    """
    outputs, inputs = weight.shape
    half = weight.bfloat16()
    exact = torch.equal(half.float(), weight)
    tiles = F.pad(half if exact else weight, (0, 0, 0, -outputs % TILE))
    tiles = tiles.view(-1, TILE, inputs).transpose(1, 2)
    if exact:
        tiles = tiles.reshape(-1, inputs, 2, LANES).transpose(2, 3)
    return _placed(tiles)


def _packed_int8(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[out, in] -> [tiles, in / 4, TILE, 4] int8; an output's scale and what its sums start from,
    both [tiles * TILE]: -128 times its weights, since rows come as bytes that are 128 too high."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % FOUR, 0, -outputs % TILE))
    scale = padded.abs().amax(1) / 127
    rounded = (padded / scale.clamp(min=1e-30)[:, None]).round()
    start = (-128 * rounded.sum(1)).int()
    tiles = rounded.to(torch.int8).view(-1, TILE, padded.shape[1] // FOUR, FOUR).transpose(1, 2)
    return _placed(tiles), scale.contiguous(), start


def _placed(tiles: Tensor) -> Tensor:
    """A contiguous copy on huge pages."""
    packed = _huge_pages(tiles.numel() * tiles.element_size()).view(tiles.dtype).view(tiles.shape)
    return packed.copy_(tiles)


def _huge_pages(size: int) -> Tensor:
    """`size` bytes on huge pages where the system gives them: fewer address translations."""
    # Python's default is shared memory, which gets none.
    area = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + size]
