# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""A sum over GPUs within the norm behind it: each rank's rows are read from its own memory.

A row's program tells its like on every other GPU that this rank's rows are written, waits until
all have told so, and adds their rows in the order of ranks. No rank waits for the others' reading:
whoever writes the rows uses two places in turn, and a place is written again only behind the next
exchange, which no rank leaves before all have read this one.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.rollout_device import after_previous, launch_options


@triton.jit
def _meet(flags, row, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Waits until the same row's programs of all ranks are here; flags are 0 again afterwards."""
    for other in tl.static_range(RANKS):
        if other != RANK:
            theirs = tl.load(flags + other).to(tl.pointer_type(tl.int32)) + row * RANKS + RANK
            before = tl.atomic_cas(theirs, 0, 1, sem="release", scope="sys")
            while before != 0:
                before = tl.atomic_cas(theirs, 0, 1, sem="release", scope="sys")
    for other in tl.static_range(RANKS):
        if other != RANK:
            mine = tl.load(flags + RANK).to(tl.pointer_type(tl.int32)) + row * RANKS + other
            told = tl.atomic_cas(mine, 1, 0, sem="acquire", scope="sys")
            while told != 1:
                told = tl.atomic_cas(mine, 1, 0, sem="acquire", scope="sys")


@triton.jit
def _exchange_norm_kernel(stream, rooms, flags, weight, bias, out, tap, start, tap_stride, eps,
                          H: tl.constexpr, HP: tl.constexpr, RANK: tl.constexpr,
                          RANKS: tl.constexpr, BIAS: tl.constexpr, TAP: tl.constexpr,
                          PDL: tl.constexpr):  # fmt: skip
    row, k = tl.program_id(0), tl.arange(0, HP)
    inside = k < H
    w = tl.load(weight + k, inside, 0.0).to(tl.float32)
    after_previous(PDL)
    old = tl.load(stream + row * H + k, inside, 0.0).to(tl.float32)
    _meet(flags, row, RANK, RANKS)
    x = tl.zeros((HP,), tl.float32)
    for rank in tl.static_range(RANKS):
        room = tl.load(rooms + rank).to(tl.pointer_type(stream.dtype.element_ty))
        room = tl.multiple_of(room, 16)  # for wide loads
        part = tl.load(room + start + row * H + k, inside, 0.0, cache_modifier=".cg")
        x += part.to(tl.float32)
    if BIAS:
        x += tl.load(bias + k, inside, 0.0).to(tl.float32)
    rounded = (x + old).to(stream.dtype.element_ty)
    tl.store(stream + row * H + k, rounded, inside)
    if TAP:
        tl.store(tap + row * tap_stride + k, rounded, inside)
    x = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / H + eps)
    tl.store(out + row * H + k, (x * scale * w).to(out.dtype.element_ty), inside)


def exchange_norm(
    stream: Tensor,
    rooms: Tensor,
    flags: Tensor,
    start: int,
    rank: int,
    weight: Tensor,
    eps: float,
    *,
    bias: Tensor | None = None,
    tap: Tensor | None = None,
) -> Tensor:
    """As `add_rms_norm`, the parts being rows that lie on `rooms`' GPUs, each in stream's dtype.

    rooms, flags [ranks] int64: addresses of every rank's rows and of its int32 flags, 0 at first,
    one a row and rank; `start` elements into the rooms is where these rows [n, H] begin.
    """
    n, hidden = stream.shape
    out = torch.empty_like(stream)
    _exchange_norm_kernel[(n,)](
        stream, rooms, flags, weight, weight if bias is None else bias, out,
        stream if tap is None else tap, start, 0 if tap is None else tap.stride(0), eps,
        H=hidden, HP=triton.next_power_of_2(hidden), RANK=rank, RANKS=len(rooms),
        BIAS=bias is not None, TAP=tap is not None,
        **launch_options(stream, warps=8 if hidden > 1024 else 4),
    )  # fmt: skip
    return out
