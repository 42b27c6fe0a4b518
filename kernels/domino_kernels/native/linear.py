"""A float32 linear layer whose weights are packed tile by tile, in bfloat16 where that is exact."""

import ctypes
import mmap

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.native.library import library
from domino_kernels.native.pool import pool

TILE = 32
LANES = 16
HUGE_PAGE = 1 << 21


class LinearStruct(ctypes.Structure):
    """`linear` of linear.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("half", ctypes.c_int),
    )


class NativeLinear:
    """y = x W^T + b in float32: `weight` [out, in], `bias` [out]; any number of rows.

    Weights that bfloat16 holds without loss, as those of most checkpoints, are kept in it: half
    the bytes to read a step, and widened in registers to the same float32 values.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = None if bias is None else bias.contiguous()
        self._weight = _packed(weight)
        self.struct = LinearStruct(
            self._weight.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            weight.shape[1],
            weight.shape[0],
            self._weight.dtype == torch.bfloat16,
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
    packed = _huge_pages(tiles.numel() * tiles.element_size()).view(tiles.dtype).view(tiles.shape)
    return packed.copy_(tiles)


def _huge_pages(size: int) -> Tensor:
    """`size` bytes on huge pages where the system gives them: fewer address translations."""
    area = mmap.mmap(-1, size + HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        area.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + size]
