# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""The q, k, v projection in; normed and rotated queries out, keys and values into their pages."""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.device import summed
from domino_kernels.rollout_device import after_previous, launch_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What a layer's q, k, v projection holds, and how each head is prepared.

    bias [(heads + 2 kv_heads) * head_dim]; q_norm, k_norm [head_dim].
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@triton.jit
def _half(parts, bias, at, inside, width_at, part_stride, PARTS: tl.constexpr,
          BIAS: tl.constexpr):  # fmt: skip
    x = summed(parts, at, inside, part_stride, PARTS)
    if BIAS:
        x += tl.load(bias + width_at, inside, 0.0).to(tl.float32)
    return x


@triton.jit
def _rope_store_kernel(parts, bias, q_norm, k_norm, cos, sin, positions, slots, q, k, v,
                       part_stride, page_stride, eps, HEADS: tl.constexpr, KV: tl.constexpr,
                       D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr, N: tl.constexpr,
                       PARTS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
                       PDL: tl.constexpr):  # fmt: skip
    """One row and N heads, all of them queries, or keys, or values."""
    row, first = tl.program_id(0), tl.program_id(1) * N
    d = tl.arange(0, HALF)[None, :]
    head = first + tl.arange(0, N)[:, None]
    inside = (d < D // 2) & (head >= 0)
    channel = d < D // 2
    position = tl.load(positions + row).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    c = tl.load(cos + position * (D // 2) + d, channel, 0.0).to(tl.float32)
    s = tl.load(sin + position * (D // 2) + d, channel, 0.0).to(tl.float32)
    after_previous(PDL)
    width_at = head * D + d
    at = row * ((HEADS + 2 * KV) * D) + width_at
    a = _half(parts, bias, at, inside, width_at, part_stride, PARTS, BIAS)
    b = _half(parts, bias, at + D // 2, inside, width_at + D // 2, part_stride, PARTS, BIAS)
    if first < HEADS + KV:
        dtype: tl.constexpr = q.dtype.element_ty
        if NORM:
            norm = q_norm if first < HEADS else k_norm
            squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
            scale = (1.0 / tl.sqrt(squares / D + eps))[:, None]
            a = a * scale * tl.load(norm + d, channel, 0.0).to(tl.float32)
            b = b * scale * tl.load(norm + D // 2 + d, channel, 0.0).to(tl.float32)
            a, b = a.to(dtype).to(tl.float32), b.to(dtype).to(tl.float32)
        a, b = a * c - b * s, b * c + a * s
    if first < HEADS:
        to = q + (row * HEADS + head) * D + d
        keep = inside
    else:
        target = k if first < HEADS + KV else v
        kv_head = (head - HEADS) % KV
        page, offset = slot // PAGE, slot % PAGE
        to = target + page * page_stride + (kv_head * PAGE + offset) * D + d
        keep = inside & (slot >= 0)
    tl.store(to, a.to(q.dtype.element_ty), keep)
    tl.store(to + D // 2, b.to(q.dtype.element_ty), keep)


def rope_store(
    parts: Tensor,
    heads: Heads,
    angles: tuple[Tensor, Tensor],
    positions: Tensor,
    slots: Tensor,
    kv: tuple[Tensor, Tensor],
) -> Tensor:
    """parts [S, n, (heads + 2 kv_heads) * head_dim] -> q [n, heads, head_dim]; k, v go to pages.

    angles: cos, sin [positions, head_dim / 2]; positions, slots [n] int32, a slot being
    page * page_size + offset, and negative where a row is stored nowhere; kv: one layer's k, v
    [pages, kv_heads, page_size, head_dim].
    """
    k, v = kv
    count, n, width = parts.shape
    q = torch.empty(n, heads.heads, heads.head_dim, dtype=k.dtype, device=k.device)
    bias = heads.bias if heads.bias is not None else parts
    norms = [parts if w is None else w for w in (heads.q_norm, heads.k_norm)]
    together = math.gcd(heads.heads, heads.kv_heads, 8)
    _rope_store_kernel[n, (heads.heads + 2 * heads.kv_heads) // together](
        parts, bias, *norms, *angles, positions, slots, q, k, v, n * width, k.stride(0), heads.eps,
        HEADS=heads.heads, KV=heads.kv_heads, D=heads.head_dim, PAGE=k.shape[2], PARTS=count,
        HALF=triton.next_power_of_2(heads.head_dim // 2), BIAS=heads.bias is not None,
        NORM=heads.q_norm is not None, N=together,
        **launch_options(parts, warps=4 if together > 2 else 1),
    )  # fmt: skip
    return q


def rope_store_reference(
    qkv: Tensor, heads: Heads, angles: tuple[Tensor, Tensor], positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [n, (heads + 2 kv_heads) * head_dim] -> q, k, v, each [n, its heads, head_dim]."""
    x = qkv if heads.bias is None else qkv + heads.bias
    x = x.view(len(x), -1, heads.head_dim)
    q, k, v = x.split([heads.heads, heads.kv_heads, heads.kv_heads], dim=1)
    return (
        _prepare(q, heads.q_norm, heads.eps, angles, positions),
        _prepare(k, heads.k_norm, heads.eps, angles, positions),
        v,
    )


def _prepare(
    x: Tensor, norm: Tensor | None, eps: float, angles: tuple[Tensor, Tensor], positions: Tensor
) -> Tensor:
    if norm is not None:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * norm.float()
        x = y.to(x.dtype)
    cos, sin = (table[positions.long()][:, None] for table in angles)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
