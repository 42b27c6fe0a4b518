"""Gate and up products of up to 256 rows, one wave of a GPU's multiprocessors, by tensor copies.

Rows in, silu(gate) * up out. bfloat16 on GPUs of compute capability 9.0, with cuda-bindings.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from domino_kernels.cuda.program import CudaKernel, available, check

ROWS, COLUMNS, DEPTH, THREADS = 256, 96, 64, 384  # as in gated_rows.cu
SHARED_BYTES = 4 * (ROWS + 2 * COLUMNS) * DEPTH * 2 + 64 + 1024  # stages, barriers, alignment


class _Params(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_ubyte * 128),
        ("w", ctypes.c_ubyte * 128),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int),
        ("columns", ctypes.c_int),
        ("steps", ctypes.c_int),
        ("padding", ctypes.c_ubyte * 108),
    )


def fits(weight: Tensor) -> bool:
    """Whether `gated_rows` takes a weight [2N, K] where it is."""
    if not (weight.is_cuda and weight.dtype == torch.bfloat16 and available()):
        return False
    half, width = len(weight) // 2, weight.shape[1]
    whole = half % 2 == 0 and width % DEPTH == 0
    return whole and torch.cuda.get_device_capability(weight.device) == (9, 0)


def gated_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x [n <= 256, K], weight [2N, K], gate before up -> silu(gate) * up [n, N]; `fits` holds."""
    (rows, width), half = x.shape, len(weight) // 2
    assert rows <= ROWS and x.is_contiguous(), f"{rows} rows"
    out = torch.empty(rows, half, dtype=x.dtype, device=x.device)
    params = _Params(
        x=_tiles(x, (width, rows), (DEPTH, ROWS)),
        w=_tiles(weight, (width, half, 2), (DEPTH, COLUMNS, 2)),
        out=out.data_ptr(),
        rows=rows,
        columns=half,
        steps=width // DEPTH,
    )
    _kernel(x.device.index).launch(-(-half // COLUMNS), THREADS, params)
    return out


@cache
def _kernel(device: int) -> CudaKernel:
    with torch.cuda.device(device):
        return CudaKernel("gated_rows", {}, SHARED_BYTES, together=False)


def _tiles(x: Tensor, sizes: tuple[int, ...], tile: tuple[int, ...]) -> Any:
    """The tensor map of contiguous x as `sizes`, the last index first, read in tiles."""
    from cuda.bindings import driver

    strides = [sizes[0] * 2, sizes[0] * sizes[1] * 2][: len(sizes) - 1]
    found = check(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            len(sizes),
            x.data_ptr(),
            [driver.cuuint64_t(size) for size in sizes],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(size) for size in tile],
            [driver.cuuint32_t(1)] * len(sizes),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return (ctypes.c_ubyte * 128).from_buffer_copy(ctypes.string_at(found.getPtr(), 128))
