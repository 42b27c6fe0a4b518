# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Mode 0 of the rollout: bottlenecks and base logits in, the best keys of each request out.

The [B, V] scores live in registers only: each program keeps the best key of its share of the
vocabulary in `keys` [programs, B], and the next step's first kernel takes the maximum.
"""

import triton
import triton.language as tl
from torch import Tensor

from .rollout_device import (
    after_previous,
    chosen_token,
    launch_options,
    pack_key,
    padded_batch,
    processors,
)


@triton.jit
def _tokens_of(turn, PROGRAMS: tl.constexpr, TILES: tl.constexpr, T: tl.constexpr,
               BACKWARD: tl.constexpr):  # fmt: skip
    """A program's tokens of a turn [T]; beyond the last tile they are below 0 or no tokens."""
    tile = turn * PROGRAMS + tl.program_id(0)
    return (TILES - 1 - tile if BACKWARD else tile) * T + tl.arange(0, T)


@triton.jit
def _score_kernel(state, w2, base, keys, batch, state_width, base_width, first, V: tl.constexpr,
                  E: tl.constexpr, N: tl.constexpr, EP: tl.constexpr, T: tl.constexpr,
                  PROGRAMS: tl.constexpr, BACKWARD: tl.constexpr, STAGES: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    request, e = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, EP)
    live, rows = (request < batch)[:, None], base + request[:, None] * base_width
    TILES: tl.constexpr = (V + T - 1) // T
    # base logits are older than the kernel before; those of a turn are read during the one before
    v = _tokens_of(0, PROGRAMS, TILES, T, BACKWARD)
    logits = tl.load(rows + v[None, :], live & (v < V)[None, :], 0.0, eviction_policy="evict_first")
    after_previous(PDL)
    at = state + request[:, None] * state_width + e[None, :]
    s = tl.load(at, live & (e < E)[None, :], 0.0).to(w2.dtype.element_ty)
    best_score = tl.full((N, T), -float("inf"), tl.float32)
    best_token = tl.full((N, T), V - 1, tl.int32)
    for turn in tl.range(0, (TILES + PROGRAMS - 1) // PROGRAMS, num_stages=STAGES):
        v = _tokens_of(turn, PROGRAMS, TILES, T, BACKWARD)
        inside = ((v >= 0) & (v < V))[None, :]
        w = tl.load(w2 + v[None, :] * E + e[:, None], inside & (e < E)[:, None], 0.0)
        u = _tokens_of(turn + 1, PROGRAMS, TILES, T, BACKWARD)
        there = live & ((u >= 0) & (u < V))[None, :]
        following = tl.load(rows + u[None, :], there, 0.0, eviction_policy="evict_first")
        scores = logits + tl.dot(s, w, input_precision="ieee")
        # the lowest id on ties: the walk meets ids in order, or in reverse
        better = inside & ((scores >= best_score) if BACKWARD else (scores > best_score))
        best_score = tl.where(better, scores, best_score)
        best_token = tl.where(better, v[None, :], best_token)
        logits = following
    key = tl.max(pack_key(best_score, best_token + first), axis=1)
    tl.store(keys + tl.program_id(0) * batch + request, key, request < batch)


@triton.jit
def _first_kernel(
    base, keys, batch, base_width, first, V: tl.constexpr, T: tl.constexpr, PDL: tl.constexpr
):
    after_previous(PDL)
    request, part = tl.program_id(0), tl.program_id(1)
    v = part * T + tl.arange(0, T)
    scores = tl.load(base + request * base_width + v, v < V, -float("inf"))
    key = tl.max(pack_key(scores, tl.minimum(v, V - 1) + first), axis=0)
    tl.store(keys + part * batch + request, key)


@triton.jit
def _tokens_kernel(keys, ids, batch, parts, ids_width, PARTS: tl.constexpr, PDL: tl.constexpr):
    after_previous(PDL)
    request = tl.program_id(0)
    token = chosen_token(keys, request, batch, parts, PARTS)
    tl.store(ids + request * ids_width, token.to(tl.int64))


def write_tokens(keys: Tensor, parts: int, ids: Tensor, *, early: bool = True) -> None:
    """ids [B] int64, any stride = the tokens of the best keys of keys [parts, B]."""
    _tokens_kernel[(len(ids),)](
        keys, ids, len(ids), parts, ids.stride(0), PARTS=triton.next_power_of_2(parts),
        **launch_options(keys, early=early),
    )  # fmt: skip


def tiling(requests: int, element_size: int) -> tuple[int, int, int, int]:
    """Tokens a tile, pipeline stages, warps and programs a multiprocessor, as measured fastest."""
    if element_size > 2:
        return 64, 2, 8, 1
    if requests <= 16:
        return 128, 3, 8, 1
    if requests > 64:
        return 64, 3, 8, 1
    return (32 if requests > 32 else 64), 3, 4, 2


def first_token(base: Tensor, keys: Tensor, first: int = 0, *, early: bool = True) -> int:
    """base [B, V] float32 -> the highest base logits' keys in keys [parts, B]; returns parts.

    first: the token of column 0.
    """
    tile = 4096
    parts: int = triton.cdiv(base.shape[1], tile)
    _first_kernel[len(base), parts](
        base, keys, len(base), base.stride(0), first, V=base.shape[1], T=tile,
        **launch_options(base, warps=8, early=early),
    )  # fmt: skip
    return parts


def score_all(
    state: Tensor, w2: Tensor, base: Tensor, keys: Tensor, *, backward: bool, first: int = 0
) -> int:
    """state [B, >= E] float32, w2 [V, E], base [B, V] float32 -> keys [parts, B]; returns parts.

    first: the token of row 0 of w2. `backward` walks the vocabulary from its end: steps that
    alternate meet the rows of W2 that the step before left in the L2 cache.
    """
    batch, (vocab, bottleneck) = len(base), w2.shape
    # more float32 rows than 64 would not fit in shared memory
    requests = min(padded_batch(batch), 128 if w2.element_size() == 2 else 64)
    tile, stages, warps, each = tiling(requests, w2.element_size())
    programs: int = min(triton.cdiv(vocab, tile), each * processors(base))
    _score_kernel[programs, triton.cdiv(batch, requests)](
        state, w2, base, keys, batch, state.stride(0), base.stride(0), first, V=vocab, E=bottleneck,
        N=requests, EP=max(16, triton.next_power_of_2(bottleneck)), T=tile, PROGRAMS=programs,
        BACKWARD=backward, STAGES=stages, **launch_options(base, warps=warps),
    )  # fmt: skip
    return programs
