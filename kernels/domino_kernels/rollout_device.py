# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Device functions every rollout kernel shares: ordered score keys and dependent launch."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOWEST_KEY = tl.constexpr(-(2**63))


@triton.jit
def ordered(score):
    """float32 -> int32 in the same order; both zeros are one value, as in a float comparison."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def pack_key(score, token):
    """One int64 whose maximum is the highest score, the lowest token id among equals."""
    return (ordered(score).to(tl.int64) << 32) + (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def key_token(key):
    """The token id inside a key."""
    return 0x7FFFFFFF - (key & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def chosen_token(keys, request, batch, parts, PARTS: tl.constexpr):
    """The token of one request's best key; keys [parts, batch], one part from each program."""
    part = tl.arange(0, PARTS)
    found = tl.load(keys + part * batch + request, part < parts, LOWEST_KEY)
    return key_token(tl.max(found, axis=0))


@triton.jit
def after_previous(PDL: tl.constexpr):
    """Waits for the kernel before; what a kernel reads earlier must be constant weights."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


def launch_options(reference: Tensor, warps: int = 4, *, early: bool = True) -> dict[str, Any]:
    """Launch keywords: on CUDA an `early` kernel may start while the one before drains.

    The kernel after a join of two streams must not be early: it has two kernels before it.
    """
    early = early and reference.is_cuda
    return {"PDL": early, "num_warps": warps} | ({"launch_pdl": True} if early else {})


def padded_batch(batch: int) -> int:
    """Rows of a matrix-unit tile that hold `batch` requests: 16, 32, 64, ..."""
    rows: int = max(16, triton.next_power_of_2(batch))
    return rows


def matmul_f32(rows: Tensor, weight: Tensor, out: Tensor) -> None:
    """out [M, N] float32 = rows [M, K] @ weight [N, K]^T, float32 sums, nothing rounded to bf16."""
    if rows.is_cuda and rows.dtype != torch.float32:
        torch.mm(rows, weight.T, out_dtype=torch.float32, out=out)
    else:
        torch.mm(rows.float(), weight.float().T, out=out)


def processors(reference: Tensor) -> int:
    """Multiprocessors of the tensor's GPU; 3 under the interpreter, so that programs share work."""
    if not reference.is_cuda:
        return 3
    return torch.cuda.get_device_properties(reference.device).multi_processor_count
