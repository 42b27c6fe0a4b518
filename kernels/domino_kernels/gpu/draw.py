# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Logits, sampling settings and each row's best key in; the keys of rows that sample become a draw.

All is float64. Weights are probabilities scaled to a largest of 1. Keys order as logits do, so that
top-k and top-p are each one key: the highest from which on enough tokens, or enough mass, lies. It
is found two bits at a time, whatever the number of candidates. A program holds a part of a row; the
programs of a row tell each other their sums in rounds, and all add them in one order.
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
    processors,
)

TILE, WARPS = 8192, 16
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
def _four(a, b, c, d):
    """float64 [4] of four numbers."""
    lane = tl.arange(0, 4)
    return tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d))).to(tl.float64)


@triton.jit
def _of_all(mine, turn, sums, meet, part, parts, PARTS: tl.constexpr):
    """mine [4] of each of the row's programs: [PARTS, 4].

    Two places in turn, since some may still read the last one.
    """
    lane, p = tl.arange(0, 4), tl.arange(0, PARTS)
    room = sums + turn % 2 * parts * 4
    tl.store(room + part * 4 + lane, mine)
    tl.debug_barrier()
    if PARTS > 1:
        seen = tl.atomic_add(meet, 1, sem="acq_rel") + 1
        while seen < (turn + 1) * parts:
            seen = tl.atomic_add(meet, 0, sem="acquire")
    at = room + p[:, None] * 4 + lane[None, :]
    return tl.load(at, (p < parts)[:, None], 0.0, cache_modifier=".cg")


@triton.jit
def _column(table, which: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, 4)[None, :] == which, table, 0.0), axis=1)


@triton.jit
def _reaching(key, weight, goal, turn, sums, meet, part, parts, LOW: tl.constexpr,
              PARTS: tl.constexpr):  # fmt: skip
    """The highest key from which on all weights reach `goal`, and the next turn.

    Sums of more tokens are never smaller, since each is made in one order.
    """
    bound, lane = part * 0 + LOWEST, tl.arange(0, 4)
    for group in tl.range((32 - LOW) // 2):
        shift = 30 - 2 * group
        a = tl.sum(tl.where(key >= bound + (1 << shift), weight, 0), axis=0)
        b = tl.sum(tl.where(key >= bound + (2 << shift), weight, 0), axis=0)
        c = tl.sum(tl.where(key >= bound + (3 << shift), weight, 0), axis=0)
        found = _of_all(_four(0, a, b, c), turn, sums, meet, part, parts, PARTS)
        enough = (tl.sum(found, axis=0) >= goal) & (lane > 0)
        bound += tl.max(tl.where(enough, lane, 0), axis=0) << shift
        turn += 1
    return bound, turn


@triton.jit
def _draw_row(logits, keys, positions, own, seed, heat, sums, meets, row, part, parts,
              V: tl.constexpr, LOW: tl.constexpr, PARTS: tl.constexpr,
              T: tl.constexpr):  # fmt: skip
    top_k, top_p, min_p = tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    uniform = _uniform(tl.load(seed), tl.load(positions + row) + 1)
    meet, room = meets + row, sums + row * (2 * parts * 4)
    p = tl.arange(0, PARTS)
    at_keys = keys + row * parts + p
    best = tl.max(tl.load(at_keys, p < parts, LOWEST_KEY), axis=0) >> 32
    highest = _score(best.to(tl.int32), 0)
    top = highest.to(tl.float64)
    v = part * T + tl.arange(0, T)
    score = tl.load(logits + row.to(tl.int64) * V + v, v < V, -float("inf")).to(tl.float32)
    key = (ordered(score) >> LOW) << LOW
    weight = tl.where(v < V, tl.exp((score.to(tl.float64) - top) / heat), 0.0)
    last, turn, goal = part * 0 + LOWEST, part * 0, top * 0.0
    if (top_k > 0.0) & (top_k < V):
        one = (v < V).to(tl.int32)
        last, turn = _reaching(key, one, top_k, turn, room, meet, part, parts, LOW, PARTS)
    if top_p < 1.0:
        likely = tl.where(key >= last, weight, 0.0)
        mass = _four(tl.sum(likely, axis=0), 0.0, 0.0, 0.0)
        found = _of_all(mass, turn, room, meet, part, parts, PARTS)
        goal = top_p * tl.sum(_column(found, 0), axis=0)
        last, turn = _reaching(key, likely, goal, turn + 1, room, meet, part, parts, LOW, PARTS)
    # what is above the border stays, of what is at it so many tokens of lowest ids
    likely, same = tl.where(key > last, weight, 0.0), ((key == last) & (v < V)).to(tl.int32)
    passing = tl.where(likely >= min_p, likely, 0.0)
    equal = tl.sum(same, axis=0)
    mine = _four(tl.sum(likely, axis=0), tl.sum(passing, axis=0), equal.to(tl.float64), 0.0)
    found = _of_all(mine, turn, room, meet, part, parts, PARTS)
    kept, at_border = _column(found, 1), _column(found, 2)
    ties = tl.sum(at_border, axis=0)
    border = tl.where(ties > 0.0, tl.exp((_score(last, LOW).to(tl.float64) - top) / heat), 0.0)
    if top_p < 1.0:
        needed = tl.ceil((goal - tl.sum(_column(found, 0), axis=0)) / border)
        ties = tl.minimum(ties, tl.maximum(needed, 1.0))
    ties_before = tl.cumsum(at_border, axis=0) - at_border
    here = tl.minimum(tl.maximum(ties - ties_before, 0.0), at_border)
    mass = kept + tl.where(border >= min_p, here * border, 0.0)
    end = tl.cumsum(mass, axis=0)
    target = uniform * tl.max(end, axis=0)
    owner = tl.min(tl.where((end > target) & (mass > 0.0), p, PARTS), axis=0)
    final = tl.max(tl.where(mass > 0.0, p, 0), axis=0)
    owner = tl.where(owner < PARTS, owner, final)  # rounding may leave sums below the target
    if part == owner:
        before = tl.sum(tl.where(p < owner, mass, 0.0), axis=0)
        rank = tl.sum(tl.where(p < owner, at_border, 0.0), axis=0) + tl.cumsum(same, axis=0)
        keep = ((key > last) | ((same > 0) & (rank <= ties))) & (weight >= min_p) & (v < V)
        so_far = before + tl.cumsum(tl.where(keep, weight, 0.0), axis=0)
        token = tl.min(tl.where(keep & (so_far > target), v, V), axis=0)
        token = tl.where(token < V, token, tl.max(tl.where(keep, v, 0), axis=0))
        drawn = tl.where(p == 0, pack_key(highest, token), LOWEST_KEY)
        tl.store(at_keys, drawn, p < parts)


@triton.jit(do_not_specialize=["rows", "parts", "width"])
def _draw_kernel(logits, keys, counts, positions, knobs, seeds, sums, meets, rows, parts, width,
                 BATCH: tl.constexpr, V: tl.constexpr, LOW: tl.constexpr, PARTS: tl.constexpr,
                 T: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    part, row, sequence = tl.program_id(0), tl.program_id(1), tl.arange(0, BATCH)
    after_previous(PDL)
    hottest = tl.max(tl.load(knobs + sequence * 5, sequence < rows // width, 0.0), axis=0)
    while (hottest > 0.0) & (row < rows):
        at = row // width
        heat, used = tl.load(knobs + at * 5), tl.load(counts + at)
        if (heat > 0.0) & (row % width < used):
            _draw_row(logits, keys, positions, knobs + at * 5, seeds + at * 5 + 4, heat, sums,
                      meets, row, part, parts, V, LOW, PARTS, T)  # fmt: skip
        row += tl.num_programs(1)


def draw(
    logits: Tensor, keys: Tensor, meets: Tensor, counts: Tensor, positions: Tensor, knobs: Tensor
) -> None:
    """Rewrites the keys of rows that sample as if the drawn token had the highest logit.

    logits [B * W, V]; keys [B * W, parts of TILE ids]; meets [B * W] int32, all 0; counts [B]
    int32: rows used. positions [B * W] int32: of each row's id, the drawn one stands behind it.
    knobs [B, 5] float64: temperature (0: no sampling), top_k (0: off), top_p (1: off), min_p
    (0: off), and an int64 seed's bits.
    """
    (rows, vocab), parts = logits.shape, keys.shape[1]
    sums = torch.empty(rows, 2, parts, 4, dtype=torch.float64, device=logits.device)
    # a row's programs wait for each other, so there are no more than run at once
    at_once = max(1, processors(logits) // parts)
    _draw_kernel[parts, min(rows, at_once)](
        logits, keys, counts, positions, knobs, knobs.view(torch.int64), sums, meets, rows, parts,
        rows // len(counts), BATCH=triton.next_power_of_2(len(counts)), V=vocab,
        LOW=16 if logits.dtype == torch.bfloat16 else 0, PARTS=triton.next_power_of_2(parts),
        T=TILE, **launch_options(logits, warps=WARPS),
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
