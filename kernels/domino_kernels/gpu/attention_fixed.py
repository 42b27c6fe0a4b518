# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Attention whose results have the same bits whatever rows are computed together.

A sequence's keys are cut at fixed positions, each piece is read as if it were alone, and the pieces
a row sees are merged in one tree. How many programs share the pieces does not matter.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.attention import LOG2E, KeyTiles, Queries, padded_rows
from domino_kernels.gpu.attention_walk import read_keys
from domino_kernels.rollout_device import after_previous, launch_options

NEAR, NEAR_KEYS, FAR = 16, 256, 24  # short pieces, keys of one, long pieces at most
WALK = KeyTiles(64, 2, 4)
PROGRAMS = 512  # that keep the memory busy


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where keys are cut: NEAR pieces of NEAR_KEYS, then pieces of `far` keys, `most` in all."""

    far: int
    most: int

    @classmethod
    def of(cls, context: int) -> "Cuts":
        """For sequences of so many positions at most."""
        rest = max(0, context - NEAR * NEAR_KEYS)
        far = max(NEAR_KEYS, -(-rest // (FAR * WALK.keys)) * WALK.keys)
        return cls(far, cls(far, 0).pieces(context))

    def pieces(self, positions: int) -> int:
        """Of a sequence so long."""
        near = min(positions, NEAR * NEAR_KEYS)
        return -(-near // NEAR_KEYS) + -(-(positions - near) // self.far)


@triton.jit
def _cut(piece, far, NEAR: tl.constexpr, NEAR_KEYS: tl.constexpr):
    """The first key of a piece."""
    return tl.minimum(piece, NEAR) * NEAR_KEYS + tl.maximum(piece - NEAR, 0) * far


@triton.jit(do_not_specialize=["table_width", "slots", "programs", "far"])
def _attend_kernel(q, k, v, table, tiles, last, partial, mass, page_stride, table_width, slots,
                   programs, far, scale, HEADS: tl.constexpr, GROUP: tl.constexpr,
                   D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, PAGE: tl.constexpr,
                   KEYS: tl.constexpr, STAGES: tl.constexpr, NEAR: tl.constexpr,
                   NEAR_KEYS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    tile, kv_head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, d = tl.arange(0, M), tl.arange(0, DP)
    live = m < tl.load(tiles + tile * 3 + 1) * GROUP
    pages = table + tl.load(tiles + tile * 3 + 2) * table_width
    row = tl.load(tiles + tile * 3) + m // GROUP
    end = tl.load(last + row, live, 0)
    stop = tl.max(end, axis=0)
    sure = tl.min(tl.where(end > 0, end, 0x7FFFFFFF), axis=0)
    q_at = (row * HEADS + kv_head * GROUP + m % GROUP)[:, None] * D + d[None, :]
    known = live[:, None] & (d < D)[None, :]
    after_previous(PDL)
    queries = tl.load(q + q_at, known, 0.0)
    lo = _cut(piece, far, NEAR, NEAR_KEYS)
    while lo < stop:
        hi = tl.minimum(stop, _cut(piece + 1, far, NEAR, NEAR_KEYS))
        top, total, acc = read_keys(queries, k, v, k, v, pages, end, end, sure, lo, hi, kv_head,
                                    page_stride, scale, HEADS // GROUP, D, DP, M, PAGE, KEYS,
                                    False, False, STAGES)  # fmt: skip
        place = (tile * (HEADS // GROUP) + kv_head) * slots + piece
        tl.store(mass + (place * 2) * M + m, top)
        tl.store(mass + (place * 2 + 1) * M + m, total)
        to = partial + place.to(tl.int64) * (M * DP) + m[:, None] * DP + d[None, :]
        tl.store(to, acc, known & (total > 0.0)[:, None])
        piece += programs
        lo = _cut(piece, far, NEAR, NEAR_KEYS)


@triton.jit(do_not_specialize=["slots", "far"])
def _merge_kernel(tiles, last, partial, mass, out, slots, far, HEADS: tl.constexpr,
                  GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
                  S: tl.constexpr, NEAR: tl.constexpr, NEAR_KEYS: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    tile, kv_head, packed = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    s, d = tl.arange(0, S), tl.arange(0, DP)
    after_previous(PDL)
    if packed < tl.load(tiles + tile * 3 + 1) * GROUP:
        row = tl.load(tiles + tile * 3) + packed // GROUP
        seen = _cut(s, far, NEAR, NEAR_KEYS) < tl.load(last + row)  # others are not written
        place = (tile * (HEADS // GROUP) + kv_head) * slots + s
        top = tl.load(mass + place * (2 * M) + packed, seen, -float("inf"))
        total = tl.load(mass + place * (2 * M) + M + packed, seen, 0.0)
        share = tl.where(total > 0.0, tl.exp2(top - tl.max(top, axis=0)), 0.0)
        at = partial + place.to(tl.int64)[:, None] * (M * DP) + packed * DP + d[None, :]
        acc = tl.load(at, (total > 0.0)[:, None] & (d < D)[None, :], 0.0)
        mixed = tl.sum(acc * share[:, None], axis=0)
        whole = tl.sum(share * total, axis=0)
        value = mixed / tl.where(whole > 0.0, whole, 1.0)
        to = out + (row * HEADS + kv_head * GROUP + packed % GROUP) * D + d
        tl.store(to, value.to(out.dtype.element_ty), d < D)


def fixed_attention(
    q: Tensor, kv: tuple[Tensor, Tensor], queries: Queries, cuts: Cuts, slots: int
) -> Tensor:
    """As `paged_attention` without a window; slots: pieces of the longest sequence, at least."""
    (k, v), (_, heads, dim), tiles = kv, q.shape, len(queries.tiles)
    kv_heads, page_size = k.shape[1:3]
    group, padded = heads // kv_heads, max(16, triton.next_power_of_2(dim))
    packed = padded_rows(queries.tile_rows * group, q.element_size())
    out, places = torch.empty_like(q), tiles * kv_heads * slots * packed
    mass = torch.empty(places * 2, dtype=torch.float32, device=q.device)
    partial = torch.empty(places * padded, dtype=torch.float32, device=q.device)
    sizes = {"HEADS": heads, "GROUP": group, "D": dim, "DP": padded, "M": packed}
    sizes |= {"NEAR": NEAR, "NEAR_KEYS": NEAR_KEYS}
    programs = min(slots, max(1, PROGRAMS // (tiles * kv_heads)))
    _attend_kernel[tiles, kv_heads, programs](
        q, k, v, queries.table, queries.tiles, queries.last, partial, mass, k.stride(0),
        queries.table.shape[1], slots, programs, cuts.far, dim**-0.5 * LOG2E, **sizes,
        PAGE=page_size, KEYS=WALK.keys, STAGES=WALK.stages,
        **launch_options(q, warps=WALK.warps),
    )  # fmt: skip
    _merge_kernel[tiles, kv_heads, queries.tile_rows * group](
        queries.tiles, queries.last, partial, mass, out, slots, cuts.far, **sizes,
        S=triton.next_power_of_2(cuts.most), **launch_options(q, warps=4),
    )  # fmt: skip
    return out
