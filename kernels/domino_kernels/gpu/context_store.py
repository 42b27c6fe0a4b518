# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""The k, v projections of rows for every layer at once in; normed, rotated, into all pages out."""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.device import summed
from domino_kernels.rollout_device import after_previous, launch_options


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextHeads:
    """What the stacked projection holds: layer after layer, its keys' heads, then its values'.

    bias [layers * 2 * kv_heads * head_dim]; k_norm [layers, head_dim].
    """

    eps: float
    bias: Tensor | None = None
    k_norm: Tensor | None = None


@triton.jit
def _context_store_kernel(parts, bias, k_norm, cos, sin, positions, slots, k, v, part_stride,
                          layer_stride, page_stride, eps, WIDTH: tl.constexpr, KV: tl.constexpr,
                          D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
                          N: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr,
                          NORM: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """One row and N heads of one layer, all of them keys or all values."""
    row, first = tl.program_id(0), tl.program_id(1) * N
    layer, of_layer = first // (2 * KV), first % (2 * KV)
    d, head = tl.arange(0, HALF)[None, :], tl.arange(0, N)[:, None]
    channel = d < D // 2
    inside = channel & (head >= 0)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    after_previous(PDL)
    if slot >= 0:
        width_at = (first + head) * D + d
        at = row * WIDTH + width_at
        a = summed(parts, at, inside, part_stride, PARTS)
        b = summed(parts, at + D // 2, inside, part_stride, PARTS)
        if BIAS:
            a += tl.load(bias + width_at, inside, 0.0).to(tl.float32)
            b += tl.load(bias + width_at + D // 2, inside, 0.0).to(tl.float32)
        dtype: tl.constexpr = k.dtype.element_ty
        if of_layer < KV:
            if NORM:
                norm = k_norm + layer * D + d
                squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
                scale = (1.0 / tl.sqrt(squares / D + eps))[:, None]
                a = a * scale * tl.load(norm, channel, 0.0).to(tl.float32)
                b = b * scale * tl.load(norm + D // 2, channel, 0.0).to(tl.float32)
                a, b = a.to(dtype).to(tl.float32), b.to(dtype).to(tl.float32)
            c = tl.load(cos + position * (D // 2) + d, channel, 0.0).to(tl.float32)
            s = tl.load(sin + position * (D // 2) + d, channel, 0.0).to(tl.float32)
            a, b = a * c - b * s, b * c + a * s
        target = k if of_layer < KV else v
        place = (of_layer % KV + head) * PAGE + slot % PAGE
        to = target + layer.to(tl.int64) * layer_stride + slot // PAGE * page_stride + place * D + d
        tl.store(to, a.to(dtype), inside)
        tl.store(to + D // 2, b.to(dtype), inside)


def context_store(
    parts: Tensor,
    heads: ContextHeads,
    angles: tuple[Tensor, Tensor],
    positions: Tensor,
    slots: Tensor,
    kv: tuple[Tensor, Tensor],
) -> None:
    """parts [S, n, layers * 2 * kv_heads * head_dim] -> k, v of the rows in their slots.

    angles: cos, sin [positions, head_dim / 2]; positions, slots [n] int32, a slot being
    page * page_size + offset, and negative where a row is stored nowhere; kv: k, v of all layers
    [layers, pages, kv_heads, page_size, head_dim].
    """
    k, v = kv
    layers, _, kv_heads, page_size, dim = k.shape
    count, n, width = parts.shape
    assert width == layers * 2 * kv_heads * dim, f"{parts.shape} for pages {k.shape}"
    together = math.gcd(kv_heads, 8)
    _context_store_kernel[n, layers * 2 * kv_heads // together](
        parts, parts if heads.bias is None else heads.bias,
        parts if heads.k_norm is None else heads.k_norm, *angles, positions, slots, k, v,
        n * width, k.stride(0), k.stride(1), heads.eps, WIDTH=width, KV=kv_heads, D=dim,
        HALF=triton.next_power_of_2(dim // 2), PAGE=page_size, N=together, PARTS=count,
        BIAS=heads.bias is not None, NORM=heads.k_norm is not None,
        **launch_options(parts, warps=4 if together > 2 else 1),
    )  # fmt: skip


def context_reference(
    parts: Tensor, heads: ContextHeads, angles: tuple[Tensor, Tensor], positions: Tensor,
    shape: tuple[int, int, int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """k, v of each row [layers, n, kv_heads, head_dim]; shape: layers, kv_heads, head_dim."""
    x = parts.float().sum(0) + (0 if heads.bias is None else heads.bias)
    k, v = x.view(len(x), shape[0], 2, *shape[1:]).permute(2, 1, 0, 3, 4)
    if heads.k_norm is not None:
        scale = torch.rsqrt(k.square().mean(-1, keepdim=True) + heads.eps)
        k = k * scale * heads.k_norm[:, None, None]
    cos, sin = (table[positions.long()][None, :, None] for table in angles)
    a, b = k.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1), v
