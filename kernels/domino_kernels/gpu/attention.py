# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Attention of a few queries a sequence over paged keys, split over the keys, then merged.

One program reads a piece of one sequence's keys for one kv head and all queries that share it, so
that each key is read once. Key tiles behind the last visible key are never read.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from domino_kernels.gpu.attention_walk import read_keys
from domino_kernels.rollout_device import after_previous, launch_options

LOG2E = 1.4426950408889634


@triton.jit(do_not_specialize=["splits", "least", "table_width"])
def _attend_kernel(q, k, v, k_tiles, v_tiles, table, tiles, first, last, partial, mass, out,
                   page_stride, table_width, splits, least, scale, HEADS: tl.constexpr,
                   GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr,
                   PAGE: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr,
                   WHOLE: tl.constexpr, TILED: tl.constexpr, STAGES: tl.constexpr,
                   PDL: tl.constexpr):  # fmt: skip
    KV: tl.constexpr = HEADS // GROUP
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, d = tl.arange(0, M), tl.arange(0, DP)
    # who attends to what is no other kernel's result: it may be read early
    first_row = tl.load(tiles + tile * 3)
    live = m < tl.load(tiles + tile * 3 + 1) * GROUP
    pages = table + tl.load(tiles + tile * 3 + 2) * table_width
    row = first_row + m // GROUP
    end = tl.load(last + row, live, 0)
    stop = tl.max(end, axis=0)
    sure = tl.min(tl.where(end > 0, end, 0x7FFFFFFF), axis=0)  # rows that fill do not count
    begin = tl.full((M,), 0, tl.int32)
    start = 0
    if WINDOW:
        sure = 0
        begin = tl.load(first + row, live, 0)
        start = tl.min(tl.where(live, begin, 0x7FFFFFFF), axis=0) // KEYS * KEYS
    each = tl.maximum(tl.cdiv(tl.cdiv(stop - start, KEYS), splits), least) * KEYS
    lo = start + split * each
    hi = tl.minimum(stop, lo + each)
    head = kv_head * GROUP + m % GROUP
    q_at = (row * HEADS + head)[:, None] * D + d[None, :]
    known = live[:, None] & (d < D)[None, :]
    after_previous(PDL)
    queries = tl.load(q + q_at, known, 0.0)
    top, total, acc = read_keys(queries, k, v, k_tiles, v_tiles, pages, begin, end, sure, lo, hi,
                                kv_head, page_stride, scale, KV, D, DP, M, PAGE, KEYS, WINDOW,
                                TILED, STAGES)  # fmt: skip
    if WHOLE:
        acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(out + q_at, acc.to(out.dtype.element_ty), known)
    else:
        piece = (tile * KV + kv_head) * splits + split
        tl.store(mass + (piece * 2) * M + m, top)
        tl.store(mass + (piece * 2 + 1) * M + m, total)
        to = partial + piece.to(tl.int64) * (M * DP) + m[:, None] * DP + d[None, :]
        tl.store(to, acc, known & (total > 0.0)[:, None])


@triton.jit(do_not_specialize=["splits"])
def _merge_kernel(tiles, partial, mass, out, splits, HEADS: tl.constexpr, GROUP: tl.constexpr,
                  D: tl.constexpr, DP: tl.constexpr, M: tl.constexpr, S: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    KV: tl.constexpr = HEADS // GROUP
    tile, kv_head, packed = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    s, d = tl.arange(0, S), tl.arange(0, DP)
    after_previous(PDL)
    count = tl.load(tiles + tile * 3 + 1)
    if packed < count * GROUP:
        row = tl.load(tiles + tile * 3) + packed // GROUP
        piece = (tile * KV + kv_head) * splits + s
        top = tl.load(mass + piece * (2 * M) + packed, s < splits, -float("inf"))
        total = tl.load(mass + piece * (2 * M) + M + packed, s < splits, 0.0)
        highest = tl.max(top, axis=0)
        share = tl.where(total > 0.0, tl.exp2(top - highest), 0.0)
        at = partial + piece.to(tl.int64)[:, None] * (M * DP) + packed * DP + d[None, :]
        acc = tl.load(at, (total > 0.0)[:, None] & (d < D)[None, :], 0.0)
        mixed = tl.sum(acc * share[:, None], axis=0)
        whole = tl.sum(share * total, axis=0)
        value = mixed / tl.where(whole > 0.0, whole, 1.0)
        to = out + (row * HEADS + kv_head * GROUP + packed % GROUP) * D + d
        tl.store(to, value.to(out.dtype.element_ty), d < D)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Which rows attend to what.

    tiles [T, 3] int32: first row, rows and sequence of each tile, at most `tile_rows` rows a tile.
    table [sequences, pages] int32: each sequence's pages. last [n] int32: row i sees the keys of
    its sequence below last[i], and with `first` [n] none below first[i]. What a row gets that only
    fills a tile, with last 0, means nothing.
    """

    tiles: Tensor
    tile_rows: int
    table: Tensor
    last: Tensor
    first: Tensor | None = None


@dataclass(frozen=True, slots=True)
class KeyTiles:
    """How a program walks its keys: keys a tile, pipeline stages, warps.

    tiled: by tensor copies, where pages hold whole tiles and channels need no padding.
    """

    keys: int
    stages: int
    warps: int
    tiled: bool = False


def key_tiles(packed: int, padded: int, programs: int, element_size: int) -> KeyTiles:
    """As measured fastest on an H200, for `packed` query rows of `padded` channels a program."""
    if element_size > 2:
        return KeyTiles(32, 2, 4)
    if packed == 16:
        return KeyTiles(128, 2, 8) if programs >= 128 and padded <= 128 else KeyTiles(64, 2, 4)
    if padded > 128:
        return KeyTiles(64, 4, 8, True) if packed > 64 else KeyTiles(32, 6, 4, True)
    if packed > 64:
        return KeyTiles(64, 2, 8, True)
    return KeyTiles(64, 5 if programs >= 32 else 2, 4, True)


def pieces(programs: int, group_rows: int, head_dim: int) -> int:
    """Pieces that a tile's keys are read in, for so many (tile, kv head) programs.

    group_rows: rows of a tile times the query heads that share a kv head.
    """
    alone = group_rows > 64 or (group_rows > 16 and head_dim > 128)  # on a multiprocessor
    resident = 132 if alone else 512 if group_rows <= 16 and head_dim <= 128 else 256
    return 1 if programs >= 192 else max(1, min(32, resident // programs))


def tile_rows(rows: int, group: int, head_dim: int, element_size: int) -> int:
    """Rows a tile may hold, `group` query heads each: all of a sequence where they are few."""
    most = 128
    if element_size > 2:  # every product is many instructions there
        most = max(16, 4096 // triton.next_power_of_2(head_dim))
    return max(1, min(rows, most // group))


def paged_attention(
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    queries: Queries,
    *,
    splits: int = 1,
    least: int = 64,
    walk: KeyTiles | None = None,
) -> Tensor:
    """q [n, heads, head_dim] -> the same; kv: k, v [pages, kv_heads, page_size, head_dim].

    Each tile's keys are read by `splits` programs a kv head, of `least` keys or more where they
    are that many. Rows in no tile are not written.
    """
    (k, v), (_, heads, dim), tiles = kv, q.shape, len(queries.tiles)
    kv_heads, page_size = k.shape[1:3]
    group, padded = heads // kv_heads, max(16, triton.next_power_of_2(dim))
    packed = padded_rows(queries.tile_rows * group, q.element_size())
    whole = splits == 1
    out, pieces = torch.empty_like(q), 0 if whole else tiles * kv_heads * splits * packed
    mass = torch.empty(pieces * 2, dtype=torch.float32, device=q.device)
    partial = torch.empty(pieces * padded, dtype=torch.float32, device=q.device)
    walk = walk or key_tiles(packed, padded, tiles * kv_heads, q.element_size())
    sizes = {"HEADS": heads, "GROUP": group, "D": dim, "DP": padded, "M": packed}
    first = queries.last if queries.first is None else queries.first
    tiled = walk.tiled and page_size % walk.keys == 0 and dim == padded and queries.first is None
    copies = [_tiles(x, walk.keys) if tiled else x for x in kv]
    _attend_kernel[tiles, kv_heads, splits](
        q, k, v, *copies, queries.table, queries.tiles, first, queries.last, partial, mass, out,
        k.stride(0), queries.table.shape[1], splits, max(1, least // walk.keys),
        dim**-0.5 * LOG2E, **sizes, PAGE=page_size, KEYS=walk.keys,
        WINDOW=queries.first is not None, WHOLE=whole, TILED=tiled, STAGES=walk.stages,
        **launch_options(q, warps=walk.warps),
    )  # fmt: skip
    if not whole:
        _merge_kernel[tiles, kv_heads, queries.tile_rows * group](
            queries.tiles, partial, mass, out, splits, **sizes,
            S=triton.next_power_of_2(splits),
            **launch_options(q, warps=1),
        )  # fmt: skip
    return out


def _tiles(pages: Tensor, keys: int) -> TensorDescriptor:
    dim = pages.shape[-1]
    return TensorDescriptor.from_tensor(pages.view(-1, dim), [keys, dim])


def padded_rows(rows: int, element_size: int) -> int:
    """Rows of a matrix-unit tile; 32 took longer than 64 on Hopper, whose own unit starts there."""
    padded: int = max(16, triton.next_power_of_2(rows))
    return 64 if padded == 32 and element_size == 2 else padded


def attention_reference(q: Tensor, kv: tuple[Tensor, Tensor], queries: Queries) -> Tensor:
    """What `paged_attention` gives, in float64; rows that see nothing are 0."""
    out = torch.zeros_like(q, dtype=torch.float64)
    group = q.shape[1] // kv[0].shape[1]
    for first_row, count, sequence in queries.tiles.tolist():
        pages = queries.table[sequence].long()
        k, v = (x[pages].transpose(0, 1).flatten(1, 2).double() for x in kv)
        for row in range(first_row, first_row + count):
            lo = 0 if queries.first is None else int(queries.first[row])
            hi = int(queries.last[row])
            for head in range(q.shape[1] if hi > lo else 0):
                keys, values = k[head // group, lo:hi], v[head // group, lo:hi]
                scores = keys @ q[row, head].double() * q.shape[2] ** -0.5
                out[row, head] = scores.softmax(0) @ values
    return out
