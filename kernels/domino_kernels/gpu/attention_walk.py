# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""A program's walk over keys and values in pages: queries in, what their softmax needs so far out.

Whole tiles that every query sees may come by tensor copies; the others are read by address, and
masked. What is masked is never read behind the sequence's last key.
"""

import triton
import triton.language as tl


@triton.jit
def _taken_in(scores, values, top, total, acc, scale):
    """One more tile: scores [M, KEYS] before their scale, values [KEYS, DP]."""
    higher = tl.maximum(top, tl.max(scores, axis=1) * scale)
    base = tl.where(higher == -float("inf"), 0.0, higher)
    shares = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(shares, axis=1)
    acc = tl.dot(shares.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return higher, total, acc


@triton.jit
def _masked(scores, key, begin, end, hi, WINDOW: tl.constexpr):
    """scores [M, KEYS] of those keys that each query sees."""
    seen = (key[None, :] < end[:, None]) & (key < hi)[None, :]
    if WINDOW:
        seen = seen & (key[None, :] >= begin[:, None])
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def read_keys(queries, k, v, k_tiles, v_tiles, pages, begin, end, sure, lo, hi, kv_head,
              page_stride, scale, KV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
              M: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr,
              TILED: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Keys lo .. hi of a sequence: highest score [M], mass [M] and sum of values [M, DP].

    All queries see the keys below `sure`. TILED: k_tiles, v_tiles copy [KEYS, D], DP is D.
    """
    d, j = tl.arange(0, DP), tl.arange(0, KEYS)
    top = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, DP), tl.float32)
    rest = lo
    if TILED:
        rest = lo + tl.maximum(tl.minimum(sure, hi) - lo, 0) // KEYS * KEYS
        for key0 in tl.range(lo, rest, KEYS, num_stages=STAGES):
            at = (tl.load(pages + key0 // PAGE) * KV + kv_head) * PAGE + key0 % PAGE
            keys, values = k_tiles.load([at, 0]), v_tiles.load([at, 0])
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
            top, total, acc = _taken_in(scores, values, top, total, acc, scale)
    for key0 in tl.range(rest, hi, KEYS, num_stages=1 if TILED else STAGES):
        key = key0 + j
        if PAGE % KEYS == 0:
            page = tl.load(pages + key0 // PAGE).to(tl.int64)
            at = page * page_stride + (kv_head * PAGE + key0 % PAGE + j) * D
        else:
            page = tl.load(pages + key // PAGE, key < hi, 0).to(tl.int64)
            at = page * page_stride + (kv_head * PAGE + key % PAGE) * D
        there = (key < hi)[:, None] & (d < D)[None, :]
        keys = tl.load(k + at[:, None] + d[None, :], there, 0.0)
        values = tl.load(v + at[:, None] + d[None, :], there, 0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if M <= 16:  # noqa: SIM114  # known to the compiler: a branch costs more than it saves
            scores = _masked(scores, key, begin, end, hi, WINDOW)
        elif key0 + KEYS > sure:
            scores = _masked(scores, key, begin, end, hi, WINDOW)
        top, total, acc = _taken_in(scores, values, top, total, acc, scale)
    return top, total, acc
