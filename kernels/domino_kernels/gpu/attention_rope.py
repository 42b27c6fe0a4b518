# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Attention that prepares its own rows: the q, k, v projection in, what the rows attend to out.

`rope_store` and `paged_attention` in one launch. A tile must hold all new rows of its sequence, so
that no program waits for another one's keys; each piece stores those of its own range.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.attention import LOG2E, KeyTiles, Launch, Queries
from domino_kernels.gpu.attention_walk import leave, read_keys
from domino_kernels.gpu.device import summed
from domino_kernels.gpu.rope_store import Heads
from domino_kernels.rollout_device import after_previous, launch_options


@triton.jit
def _channels(parts, bias, row, column, known, part_stride, WIDTH: tl.constexpr,
              PARTS: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    x = summed(parts, row * WIDTH + column, known, part_stride, PARTS)
    if BIAS:
        x += tl.load(bias + column, known, 0.0).to(tl.float32)
    return x


@triton.jit
def _rotated(parts, bias, norm, cos, sin, row, position, first, known, part_stride, eps, dtype,
             WIDTH: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PARTS: tl.constexpr,
             BIAS: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    """The heads at columns `first` [R, 1] of rows [R, 1], normed and rotated: float32 [R, DP]."""
    half: tl.constexpr = D // 2
    channel = tl.arange(0, DP)
    other = tl.where(channel < half, channel + half, channel - half)
    d = channel[None, :]
    x = _channels(parts, bias, row, first + d, known, part_stride, WIDTH, PARTS, BIAS)
    y = _channels(parts, bias, row, first + other[None, :], known, part_stride, WIDTH, PARTS, BIAS)
    if NORM:
        scale = (1.0 / tl.sqrt(tl.sum(x * x, axis=1) / D + eps))[:, None]
        x = x * scale * tl.load(norm + channel, channel < D, 0.0).to(tl.float32)[None, :]
        y = y * scale * tl.load(norm + other, channel < D, 0.0).to(tl.float32)[None, :]
        x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
    at = position.to(tl.int64) * half + d % half
    c = tl.load(cos + at, known, 0.0).to(tl.float32)
    s = tl.load(sin + at, known, 0.0).to(tl.float32)
    return x * c + tl.where(d < half, -y, y) * s


@triton.jit(do_not_specialize=["splits", "least", "table_width"])
def _rope_attend_kernel(qkv, bias, q_norm, k_norm, cos, sin, positions, slots, k, v, k_tiles,
                        v_tiles, table, tiles, last, partial, mass, out, part_stride, page_stride,
                        table_width, splits, least, eps, scale, HEADS: tl.constexpr,
                        GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
                        R: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
                        WHOLE: tl.constexpr, TILED: tl.constexpr, STAGES: tl.constexpr,
                        PARTS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr,
                        PDL: tl.constexpr):  # fmt: skip
    KV: tl.constexpr = HEADS // GROUP
    WIDTH: tl.constexpr = (HEADS + 2 * KV) * D
    dtype: tl.constexpr = k.dtype.element_ty
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, d, r = tl.arange(0, M), tl.arange(0, DP), tl.arange(0, R)
    # who attends to what is no other kernel's result: it may be read early
    first_row, count = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1)
    live = m < count * GROUP
    pages = table + tl.load(tiles + tile * 3 + 2) * table_width
    row = first_row + m // GROUP
    end = tl.load(last + row, live, 0)
    stop = tl.max(end, axis=0)
    old = tl.min(tl.where(end > 0, end - 1, 0x7FFFFFFF), axis=0)  # keys that are there already
    each = tl.maximum(tl.cdiv(tl.cdiv(stop, KEYS), splits), least) * KEYS
    lo = split * each
    hi = tl.minimum(stop, lo + each)
    new = first_row + r
    at = tl.load(positions + new, r < count, 0)
    slot = tl.load(slots + new, r < count, -1).to(tl.int64)
    own = ((slot >= 0) & (at >= lo) & (at < hi))[:, None] & (d < D)[None, :]
    known = live[:, None] & (d < D)[None, :]
    position = tl.load(positions + row, live, 0)
    after_previous(PDL)
    key_at = (HEADS + kv_head) * D
    key = _rotated(qkv, bias, k_norm, cos, sin, new[:, None], at[:, None], key_at, own, part_stride,
                   eps, dtype, WIDTH, D, DP, PARTS, BIAS, NORM)  # fmt: skip
    value = _channels(qkv, bias, new[:, None], key_at + KV * D + d[None, :], own, part_stride,
                      WIDTH, PARTS, BIAS)  # fmt: skip
    to = slot // PAGE * page_stride + (kv_head * PAGE + slot % PAGE) * D
    tl.store(k + to[:, None] + d[None, :], key.to(dtype), own)
    tl.store(v + to[:, None] + d[None, :], value.to(dtype), own)
    head = ((kv_head * GROUP + m % GROUP) * D)[:, None]
    queries = _rotated(qkv, bias, q_norm, cos, sin, row[:, None], position[:, None], head, known,
                       part_stride, eps, dtype, WIDTH, D, DP, PARTS, BIAS, NORM)  # fmt: skip
    tl.debug_barrier()  # this program's other threads read what was stored
    begin = tl.full((M,), 0, tl.int32)
    top, total, acc = read_keys(queries.to(dtype), k, v, k_tiles, v_tiles, pages, begin, end, old,
                                lo, hi, kv_head, page_stride, scale, KV, D, DP, M, PAGE, KEYS,
                                False, TILED, STAGES)  # fmt: skip
    piece = (tile * KV + kv_head) * splits + split
    out_at = (row * HEADS * D)[:, None] + head + d[None, :]
    leave(top, total, acc, out, out_at, known, partial, mass, piece, M, DP, WHOLE)


def rope_attention(
    qkv: Tensor,
    heads: Heads,
    angles: tuple[Tensor, Tensor],
    positions: Tensor,
    slots: Tensor,
    kv: tuple[Tensor, Tensor],
    queries: Queries,
    *,
    splits: int = 1,
    least: int = 64,
    walk: KeyTiles | None = None,
) -> Tensor:
    """qkv [S, n, (heads + 2 kv_heads) * head_dim] -> [n, heads, head_dim]; k, v go to their slots.

    Arguments as `rope_store` and `paged_attention` have them; queries without `first`, one tile a
    sequence, whose rows follow each other.
    """
    (k, v), (count, n, width) = kv, qkv.shape
    plan = Launch.of(heads.heads, kv, queries, splits, walk)
    out = torch.empty(n, heads.heads, heads.head_dim, dtype=k.dtype, device=k.device)
    bias = heads.bias if heads.bias is not None else qkv
    norms = [qkv if w is None else w for w in (heads.q_norm, heads.k_norm)]
    _rope_attend_kernel[plan.grid](
        qkv, bias, *norms, *angles, positions, slots, k, v, *plan.copies, queries.table,
        queries.tiles, queries.last, *plan.parts, out, n * width, k.stride(0),
        queries.table.shape[1], splits, max(1, least // plan.walk.keys), heads.eps,
        heads.head_dim**-0.5 * LOG2E, **plan.sizes, **plan.way, PARTS=count,
        R=triton.next_power_of_2(queries.tile_rows), BIAS=heads.bias is not None,
        NORM=heads.q_norm is not None, **launch_options(qkv, warps=plan.walk.warps),
    )  # fmt: skip
    plan.merge(out, queries)
    return out
