# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Residual stream and a layer's parts in, the new stream and its RMS norm out.

The sum is what a draft taps: where asked, it is written a second time, beside other taps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.device import summed
from domino_kernels.rollout_device import after_previous, launch_options


@triton.jit
def _norm_kernel(stream, parts, bias, weight, out, tap, slots, part_stride, tap_stride, eps,
                 H: tl.constexpr, HP: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr,
                 TAP: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    row, k = tl.program_id(0), tl.arange(0, HP)
    inside = k < H
    w = tl.load(weight + k, inside, 0.0).to(tl.float32)
    after_previous(PDL)
    place = row.to(tl.int64)
    if STORE:  # rows go to their slots; negative: to none
        place = tl.load(slots + row).to(tl.int64)
    if PARTS > 0:
        x = summed(parts, row * H + k, inside, part_stride, PARTS)
        if BIAS:
            x += tl.load(bias + k, inside, 0.0).to(tl.float32)
        if not STORE:
            x += tl.load(stream + row * H + k, inside, 0.0).to(tl.float32)
            rounded = x.to(stream.dtype.element_ty)
            tl.store(stream + row * H + k, rounded, inside)
            if TAP:
                tl.store(tap + row * tap_stride + k, rounded, inside)
            x = rounded.to(tl.float32)
    else:
        x = tl.load(stream + row * H + k, inside, 0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / H + eps)
    tl.store(out + place * H + k, (x * scale * w).to(out.dtype.element_ty), inside & (place >= 0))


def add_rms_norm(
    stream: Tensor,
    parts: Tensor | None,
    weight: Tensor,
    eps: float,
    *,
    bias: Tensor | None = None,
    tap: Tensor | None = None,
    early: bool = True,
) -> Tensor:
    """stream [n, H] += parts [S, n, H] + bias [H], in place; returns its rms norm x weight [n, H].

    `tap` [n, H], rows any distance apart, receives the new stream too. Without parts: the norm.
    Not `early`: no launch before the end of the kernel before, where that is no kernel of ours.
    """
    n, hidden = stream.shape
    out = torch.empty_like(stream)
    _norm_kernel[(n,)](
        stream, stream if parts is None else parts, weight if bias is None else bias, weight, out,
        stream if tap is None else tap, stream, n * hidden, 0 if tap is None else tap.stride(0),
        eps, H=hidden, HP=triton.next_power_of_2(hidden), PARTS=0 if parts is None else len(parts),
        BIAS=bias is not None, TAP=tap is not None, STORE=False,
        **launch_options(stream, warps=_warps(hidden), early=early),
    )  # fmt: skip
    return out


def norm_to_slots(parts: Tensor, weight: Tensor, eps: float, table: Tensor, slots: Tensor) -> None:
    """table [.., H] at slots [n] int32 = rms norm of the sum of parts [S, n, H]; none below 0."""
    _, n, hidden = parts.shape
    _norm_kernel[(n,)](
        parts, parts, weight, weight, table, parts, slots, n * hidden, 0, eps, H=hidden,
        HP=triton.next_power_of_2(hidden), PARTS=len(parts), BIAS=False, TAP=False, STORE=True,
        **launch_options(parts, warps=_warps(hidden)),
    )  # fmt: skip


def _warps(hidden: int) -> int:
    return 8 if hidden > 1024 else 4


def add_rms_norm_reference(
    stream: Tensor, parts: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The new stream and its norm, sums in float32."""
    total = (stream.float() + parts.float().sum(0)).to(stream.dtype)
    x = total.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()
    return total, x.to(stream.dtype)
