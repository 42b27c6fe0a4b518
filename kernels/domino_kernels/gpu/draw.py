# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Logits, sampling settings and each row's best key in; the keys of rows that sample become a draw.

All is float64. Weights are probabilities scaled to a largest of 1. Keys order as logits do, so that
top-k and top-p are each one key: the highest from which on enough tokens, or enough mass, lies. It
is found four bits at a time, in passes over the row, whatever the number of candidates.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.rollout_device import (
    LOWEST_KEY,
    after_previous,
    launch_options,
    ordered,
    pack_key,
)

TILE, WARPS = 1024, 16
LOWEST = tl.constexpr(-(2**31))
# splitmix64's constants as signed 64-bit numbers
GOLDEN, MIX_1, MIX_2 = (
    tl.constexpr(-0x61C8864680B583EB),
    tl.constexpr(-0x40A7B892E31B1A47),
    tl.constexpr(-0x6B2FB644ECCEEE15),
)


@triton.jit
def _shifted(z, BITS: tl.constexpr):
    return (z >> BITS) & ((1 << (64 - BITS)) - 1)


@triton.jit
def _mixed(z):
    z = (z ^ _shifted(z, 30)) * MIX_1
    z = (z ^ _shifted(z, 27)) * MIX_2
    return z ^ _shifted(z, 31)


@triton.jit
def _uniform(seed, position):
    """float64 in [0, 1): number `position` of a splitmix64 generator that starts at mix(seed)."""
    bits = _mixed(_mixed(seed) + (position.to(tl.int64) + 1) * GOLDEN)
    return _shifted(bits, 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _score(key, LOW: tl.constexpr):
    """The logit of a key, whose lowest LOW bits may be missing."""
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return ((bits >> LOW) << LOW).to(tl.float32, bitcast=True)


@triton.jit
def _keys(at, v, V: tl.constexpr, LOW: tl.constexpr):
    score = tl.load(at + v, v < V, -float("inf")).to(tl.float32)
    return score, (ordered(score) >> LOW) << LOW


@triton.jit
def _weight(score, top, heat):
    return tl.exp((score.to(tl.float64) - top) / heat)


@triton.jit
def _reaching(at, top, heat, floor, goal, COUNT: tl.constexpr, V: tl.constexpr, LOW: tl.constexpr,
              T: tl.constexpr):  # fmt: skip
    """The highest key from which on the tokens, or the weights of those from `floor` on, reach
    `goal`; sums of more tokens are never smaller, since each is made in one order."""
    bound, sixteen = LOWEST, tl.arange(0, 16)
    for group in tl.static_range((32 - LOW) // 4):
        shift = 28 - 4 * group
        least = bound + (sixteen << shift)
        held = tl.zeros((16, T), tl.int32) if COUNT else tl.zeros((16, T), tl.float64)
        for v0 in tl.range(0, V, T):
            v = v0 + tl.arange(0, T)
            score, key = _keys(at, v, V, LOW)
            reaches = (key[None, :] >= least[:, None]) & (v < V)[None, :]
            if COUNT:
                held += reaches.to(tl.int32)
            elif tl.max(key, axis=0) >= tl.maximum(floor, bound):
                weight = tl.where(key >= floor, _weight(score, top, heat), 0.0)
                held += tl.where(reaches, weight[None, :], 0.0)
        enough = tl.sum(held, axis=1).to(tl.float64) >= goal
        bound += tl.max(tl.where(enough, sixteen, 0), axis=0) << shift
    return bound


@triton.jit
def _masses(at, top, heat, last, min_p, V: tl.constexpr, LOW: tl.constexpr, T: tl.constexpr):
    """Weights of the tokens above `last`, and of those with min_p; how many tokens are at it."""
    above, kept = tl.zeros((T,), tl.float64), tl.zeros((T,), tl.float64)
    equal = tl.zeros((T,), tl.int32)
    for v0 in tl.range(0, V, T):
        v = v0 + tl.arange(0, T)
        score, key = _keys(at, v, V, LOW)
        if tl.max(key, axis=0) >= last:
            weight = tl.where((key > last) & (v < V), _weight(score, top, heat), 0.0)
            above += weight
            kept += tl.where(weight >= min_p, weight, 0.0)
            equal += ((key == last) & (v < V)).to(tl.int32)
    return tl.sum(above, axis=0), tl.sum(kept, axis=0), tl.sum(equal, axis=0)


@triton.jit
def _where_exceeded(at, top, heat, last, ties, min_p, target, V: tl.constexpr,
                    LOW: tl.constexpr, T: tl.constexpr):  # fmt: skip
    """The first token kept at which the sum of all kept so far exceeds `target`."""
    before, seen, token, final, v0 = target * 0.0, 0, V, 0, 0
    while (v0 < V) & (token == V):
        v = v0 + tl.arange(0, T)
        score, key = _keys(at, v, V, LOW)
        if tl.max(key, axis=0) >= last:
            same = ((key == last) & (v < V)).to(tl.int32)
            weight = _weight(score, top, heat)
            keep = (key > last) | ((same > 0) & (seen + tl.cumsum(same, axis=0) <= ties))
            keep = keep & (weight >= min_p) & (v < V)
            weight = tl.where(keep, weight, 0.0)
            hit = keep & (before + tl.cumsum(weight, axis=0) > target)
            token = tl.min(tl.where(hit, v, V), axis=0)
            final = tl.maximum(final, tl.max(tl.where(keep, v, 0), axis=0))
            before += tl.sum(weight, axis=0)
            seen += tl.sum(same, axis=0)
        v0 += T
    return tl.where(token < V, token, final)  # rounding may leave the sum just below the target


@triton.jit(do_not_specialize=["parts", "width"])
def _draw_kernel(logits, keys, counts, positions, knobs, seeds, parts, width, V: tl.constexpr,
                 LOW: tl.constexpr, PARTS: tl.constexpr, T: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    sequence = row // width
    own = knobs + sequence * 5
    after_previous(PDL)
    heat = tl.load(own)
    if (heat > 0.0) & (row % width < tl.load(counts + sequence)):
        top_k, top_p, min_p = tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
        uniform = _uniform(tl.load(seeds + sequence * 5 + 4), tl.load(positions + row) + 1)
        part = tl.arange(0, PARTS)
        at_keys = keys + row * parts + part
        found = tl.load(at_keys, part < parts, LOWEST_KEY)
        best = (tl.max(found, axis=0) >> 32).to(tl.int32)
        highest = _score(best, 0)
        at, top = logits + row.to(tl.int64) * V, highest.to(tl.float64)
        last = best * 0 + LOWEST
        if (top_k > 0.0) & (top_k < V):
            last = _reaching(at, top, heat, last, top_k, True, V, LOW, T)
        goal = top * 0.0
        if top_p < 1.0:
            above, _, equal = _masses(at, top, heat, last, 0.0, V, LOW, T)
            goal = top_p * (above + equal * _weight_or_none(last, top, heat, equal, LOW))
            last = _reaching(at, top, heat, last, goal, False, V, LOW, T)
        above, kept, ties = _masses(at, top, heat, last, min_p, V, LOW, T)
        weight = _weight_or_none(last, top, heat, ties, LOW)
        if top_p < 1.0:
            needed = tl.ceil((goal - above) / weight)
            ties = tl.minimum(ties, tl.maximum(needed, 1.0).to(tl.int32))
        total = kept + tl.where(weight >= min_p, ties * weight, 0.0)
        token = _where_exceeded(at, top, heat, last, ties, min_p, uniform * total, V, LOW, T)
        drawn = tl.where(part == 0, pack_key(highest, token), LOWEST_KEY)
        tl.store(at_keys, drawn, part < parts)


@triton.jit
def _weight_or_none(key, top, heat, count, LOW: tl.constexpr):
    return tl.where(count > 0, _weight(_score(key, LOW), top, heat), 0.0)


def draw(logits: Tensor, keys: Tensor, counts: Tensor, positions: Tensor, knobs: Tensor) -> None:
    """Rewrites the keys of rows that sample as if the drawn token had the highest logit.

    logits [B * W, V]; keys [B * W, parts]; counts [B] int32: rows used. positions [B * W] int32:
    of each row's id, the drawn one stands behind it. knobs [B, 5] float64: temperature (0: no
    sampling), top_k (0: off), top_p (1: off), min_p (0: off), and an int64 seed's bits.
    """
    (rows, vocab), parts = logits.shape, keys.shape[1]
    _draw_kernel[(rows,)](
        logits, keys, counts, positions, knobs, knobs.view(torch.int64), parts,
        rows // len(counts), V=vocab, LOW=16 if logits.dtype == torch.bfloat16 else 0,
        PARTS=triton.next_power_of_2(parts), T=TILE, **launch_options(logits, warps=WARPS),
    )  # fmt: skip


def draw_reference(logits: Tensor, knobs: list[float], uniform: float) -> int:
    """logits [V], knobs temperature, top_k, top_p and min_p -> the id drawn with that number."""
    temperature, top_k, top_p, min_p = knobs
    scores = logits.double()
    weights = ((scores - scores.max()) / temperature).exp()
    order = sorted(range(len(weights)), key=lambda i: (-float(scores[i]), i))
    if 0 < top_k < len(order):
        border = scores[order[int(top_k) - 1]]
        order = [i for i in order if scores[i] >= border]
    kept, mass, total = [], 0.0, float(weights[order].sum())
    for i in order:
        if top_p < 1 and mass >= top_p * total:
            break
        kept.append(i)
        mass += float(weights[i])
    kept = sorted(i for i in kept if weights[i] >= min_p)
    target, so_far = uniform * float(weights[kept].sum()), 0.0
    for i in kept:
        so_far += float(weights[i])
        if so_far > target:
            return i
    return kept[-1]
