# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""The certified rollout step: mode 0's answer from a scan of W2's 8-bit copy and a few exact rows.

`_bound_kernel` scans every token and keeps the highest upper bound of each group of 32 tokens, and
overall the highest lower bound. `_resolve_kernel` evaluates, in mode 0's arithmetic on the original
rows, every group whose upper bound reaches it. Any number may qualify; all of them is mode 0.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rollout_bounds import ERROR_WEIGHT, bound_rows
from .rollout_device import (
    LOWEST_KEY,
    after_previous,
    launch_options,
    pack_key,
    padded_batch,
    processors,
)

GROUP = tl.constexpr(32)
SLOTS = tl.constexpr(4)  # groups evaluated at once
TILE, PROGRAMS_EACH, STAGES, WARPS = 128, 2, 3, 4
REGION = 64  # groups a resolving program answers for
LARGEST_BATCH = 8  # beyond, mode 0 is faster: its W2 bytes are shared, candidates are not
ROUNDING = tl.constexpr(2.0**-20)
S_STEPS = tl.constexpr(16192.0)  # |s| in steps, at most: 128 * high + low, both one byte
D_WEIGHT = tl.constexpr(ERROR_WEIGHT)


@triton.jit
def _bound_kernel(state, q, scale, slack, base, upper, lower, batch, state_width, base_width,
                  V: tl.constexpr, E: tl.constexpr, N: tl.constexpr, EP: tl.constexpr,
                  T: tl.constexpr, PROGRAMS: tl.constexpr, BACKWARD: tl.constexpr,
                  STAGES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    TILES: tl.constexpr = (V + T - 1) // T
    GROUPS: tl.constexpr = TILES * T // GROUP
    request, e, t, g = tl.arange(0, N), tl.arange(0, EP), tl.arange(0, T), tl.arange(0, T // GROUP)
    after_previous(PDL)
    live = request < batch
    at = state + request[:, None] * state_width + e[None, :]
    s = tl.load(at, live[:, None] & (e < E)[None, :], 0.0)
    step = tl.max(tl.abs(s), axis=1) / S_STEPS
    step = tl.where(step > 0.0, step, 1.0)
    whole = tl.floor(s / step[:, None] + 0.5)
    error = s - whole * step[:, None]
    high = tl.floor(whole / 128.0 + 0.5)
    high_bytes, low_bytes = high.to(tl.int8), (whole - 128.0 * high).to(tl.int8)
    reach = tl.sqrt(tl.sum(s * s, axis=1)) + D_WEIGHT * tl.sqrt(tl.sum(error * error, axis=1))
    best = tl.full((N, T), -float("inf"), tl.float32)
    for turn in tl.range(0, (TILES + PROGRAMS - 1) // PROGRAMS, num_stages=STAGES):
        tile = turn * PROGRAMS + tl.program_id(0)
        real = tile < TILES
        place = TILES - 1 - tile if BACKWARD else tile
        v = place * T + t
        rows = tl.load(q + v[None, :] * EP + e[:, None], real, 0)
        inside = live[:, None] & (v < V)[None, :] & real
        base_at = base + request[:, None] * base_width + v[None, :]
        b = tl.load(base_at, inside, -float("inf"), eviction_policy="evict_first")
        row_scale, row_slack = tl.load(scale + v, real, 0.0), tl.load(slack + v, real, 0.0)
        product = tl.dot(high_bytes, rows, out_dtype=tl.int32).to(tl.float32) * 128.0
        product += tl.dot(low_bytes, rows, out_dtype=tl.int32).to(tl.float32)
        middle = b + product * (row_scale[None, :] * step[:, None])
        radius = row_slack[None, :] * reach[:, None]
        best = tl.maximum(best, middle - radius)
        highest = tl.max(tl.reshape(middle + radius, (N, T // GROUP, GROUP)), axis=2)
        highest += tl.where(highest > -float("inf"), ROUNDING * tl.abs(highest), 0.0)
        upper_at = upper + request[:, None] * GROUPS + (place * (T // GROUP) + g)[None, :]
        tl.store(upper_at, highest, live[:, None] & real)
    lowest = tl.max(best, axis=1)
    lowest -= tl.where(lowest > -float("inf"), ROUNDING * tl.abs(lowest), 0.0)
    tl.store(lower + tl.program_id(0) * batch + request, lowest, live)


@triton.jit
def _exact_scores(s, w2, base, v, e, request, batch, base_width, V: tl.constexpr,
                  E: tl.constexpr):  # fmt: skip
    """float32 base + W2 s of the tokens v [N, T], in mode 0's arithmetic."""
    inside = (request < batch)[:, None] & (v < V)[None, :]
    at = base + request[:, None] * base_width + v[None, :]
    scores = tl.load(at, inside, -float("inf"), eviction_policy="evict_first")
    w = tl.load(w2 + v[None, :] * E + e[:, None], (v < V)[None, :] & (e < E)[:, None], 0.0)
    return scores + tl.dot(s, w, input_precision="ieee")


@triton.jit
def _resolve_kernel(state, w2, base, upper, lower, keys, batch, state_width, base_width, groups,
                    parts, first, V: tl.constexpr, E: tl.constexpr, N: tl.constexpr,
                    EP: tl.constexpr, REGION: tl.constexpr, PARTS: tl.constexpr,
                    PDL: tl.constexpr):  # fmt: skip
    request, e, slot = tl.arange(0, N), tl.arange(0, EP), tl.arange(0, SLOTS)
    part = tl.arange(0, PARTS)
    after_previous(PDL)
    live = request < batch
    group = tl.program_id(0) * REGION + tl.arange(0, REGION)
    known = live[:, None] & (group < groups)[None, :]
    highest = tl.load(upper + request[:, None] * groups + group[None, :], known, 0.0)
    bounds_at = lower + part[None, :] * batch + request[:, None]
    bound = tl.max(
        tl.load(bounds_at, live[:, None] & (part < parts)[None, :], -float("inf")), axis=1
    )
    # not(<): a bound that is not a number must be evaluated, never dropped
    chosen = tl.max((known & ~(highest < bound[:, None])).to(tl.int32), axis=0)
    left = tl.sum(chosen, axis=0)
    key = tl.full((N,), LOWEST_KEY, tl.int64)
    if left > 0:
        at = state + request[:, None] * state_width + e[None, :]
        s = tl.load(at, live[:, None] & (e < E)[None, :], 0.0).to(w2.dtype.element_ty)
        rank = tl.where(chosen > 0, tl.cumsum(chosen, axis=0) - 1, -1)
        start = left * 0
        while start < left:
            match = rank[None, :] == (start + slot)[:, None]
            picked = tl.sum(tl.where(match, group[None, :], 0), axis=1)
            picked = tl.where(start + slot < left, picked, (V + GROUP - 1) // GROUP)
            v = picked[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            v = tl.reshape(v, (SLOTS * GROUP,))
            scores = _exact_scores(s, w2, base, v, e, request, batch, base_width, V, E)
            token = tl.broadcast_to((tl.minimum(v, V - 1) + first)[None, :], (N, SLOTS * GROUP))
            key = tl.maximum(key, tl.max(pack_key(scores, token), axis=1))
            start += SLOTS
    tl.store(keys + tl.program_id(0) * batch + request, key, live)


class CertifiedScorer:
    """Holds W2's 8-bit copy and the bound buffers for up to LARGEST_BATCH requests."""

    def __init__(self, w2: Tensor) -> None:
        self._w2 = w2
        self._width = max(32, triton.next_power_of_2(w2.shape[1]))
        self.rows = bound_rows(w2, tile=TILE, width=self._width)
        self.groups = len(self.rows.scale) // GROUP.value
        self.parts: int = triton.cdiv(self.groups, REGION)
        self._programs = min(len(self.rows.scale) // TILE, PROGRAMS_EACH * processors(w2))
        self.upper = torch.zeros(LARGEST_BATCH, self.groups, device=w2.device)
        self.lower = torch.zeros(self._programs * LARGEST_BATCH, device=w2.device)

    def score(
        self, state: Tensor, base: Tensor, keys: Tensor, *, backward: bool, first: int = 0
    ) -> int:
        """As `score_all`, for B <= LARGEST_BATCH."""
        batch, (vocab, bottleneck), rows = len(base), self._w2.shape, self.rows
        widths = state.stride(0), base.stride(0)
        sizes = {"V": vocab, "E": bottleneck, "N": padded_batch(batch)}
        _bound_kernel[(self._programs,)](
            state, rows.q, rows.scale, rows.slack, base, self.upper, self.lower, batch, *widths,
            EP=self._width, T=TILE, PROGRAMS=self._programs, BACKWARD=backward, STAGES=STAGES,
            **sizes, **launch_options(base, warps=WARPS),
        )  # fmt: skip
        _resolve_kernel[(self.parts,)](
            state, self._w2, base, self.upper, self.lower, keys, batch, *widths, self.groups,
            self._programs, first, EP=max(16, triton.next_power_of_2(bottleneck)), REGION=REGION,
            PARTS=triton.next_power_of_2(self._programs), **sizes,
            **launch_options(base, warps=8),
        )  # fmt: skip
        return self.parts
