# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Mode K over several ranks without whole logits: each rank's best tokens in, one pool out.

A rank offers the K best of its own tokens as keys, and its key of the first token; all ranks keep
the K best of what was gathered (the lowest ids on ties), fill in the base logits they hold, and add
up the ranks' parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rollout_device import LOWEST_KEY, key_token, pack_key
from .rollout_peers import shared_sums
from .rollout_pool import PoolScorer
from .rollout_shard import VocabShard


@triton.jit
def _offer_kernel(scores, places, keys, count, first, K: tl.constexpr, T: tl.constexpr):
    request, k = tl.program_id(0), tl.program_id(1) * T + tl.arange(0, T)
    at = request * count + k
    score = tl.load(scores + at, k < count, -float("inf"))
    token = tl.load(places + at, k < count, 0).to(tl.int32) + first
    key = tl.where(k < count, pack_key(score, token), LOWEST_KEY)
    tl.store(keys + request * (K + 1) + k, key, k < K)  # the last one is the first token's


@triton.jit
def _merge_kernel(offers, best, batch, total, K: tl.constexpr, POOL: tl.constexpr,
                  P: tl.constexpr):  # fmt: skip
    """A request's POOL best keys of all ranks' [ranks, batch, K + 1], which differ: by halving what
    the least of them can be."""
    request, i = tl.program_id(0), tl.arange(0, P)
    row = (i // K) * batch + request
    key = tl.load(offers + row * (K + 1) + i % K, i < total, LOWEST_KEY)
    enough = tl.sum((key >= 0).to(tl.int32)) >= POOL
    least = tl.where(enough, 0, LOWEST_KEY)
    for bit in range(63):
        higher = least + (tl.full((), 1, tl.int64) << (62 - bit))
        enough = tl.sum((key >= higher).to(tl.int32)) >= POOL
        least = tl.where(enough, higher, least)
    kept = key >= least
    place = tl.cumsum(kept.to(tl.int32)) - 1
    tl.store(best + request * POOL + place, key, kept)


@triton.jit
def _fill_kernel(keys, base, ids, pool_base, batch, step_stride, request_stride, start, stop,
                 POOL: tl.constexpr, T: tl.constexpr):  # fmt: skip
    request, step = tl.program_id(0), tl.program_id(1)
    k = tl.program_id(2) * T + tl.arange(0, T)
    token = key_token(tl.load(keys + request * POOL + k, k < POOL, 0))
    ours = (k < POOL) & (token >= start) & (token < stop)
    row = base + step.to(tl.int64) * step_stride + request * request_stride
    value = tl.load(row + token - start, ours, 0.0)
    tl.store(pool_base + (step * batch + request) * POOL + k, value, k < POOL)
    if step == 0:
        tl.store(ids + request * POOL + k, token.to(tl.int64), k < POOL)


class CompactPool(PoolScorer):
    """PoolScorer whose base logits are spread over the ranks of a shard's group."""

    def __init__(
        self, w2: Tensor, candidates: int, proposals: int, max_batch: int, shard: VocabShard
    ) -> None:
        """w2 [V, E], whole on every rank."""
        PoolScorer.__init__(self, w2, candidates, proposals, max_batch)
        self._shard, self._offers = shard, min(candidates, shard.padded)
        new, most = torch.empty, max_batch * candidates
        self._all_ids, self._best = (
            new(most, dtype=torch.int64, device=w2.device) for _ in range(2)
        )
        device, size = w2.device, max_batch * (proposals - 1) * candidates
        self._peers = shared_sums(size, shard.group, device)
        self._base = self._peers.own if self._peers else self._base
        self._keys = new(max_batch * (self._offers + 1), dtype=torch.int64, device=w2.device)

    def select(self, base: Tensor, keys: Tensor, parts: int) -> int:
        """base [n - 1, B, this rank's tokens] of the steps with a correction; keys [parts, B]: this
        rank's of the first token, which become those of all ranks."""
        (steps, batch, tokens), size, shard = base.shape, self._size, self._shard
        count, tile = min(self._offers, tokens), 1024
        scores, places = base.amax(0).topk(count, sorted=False)
        offered = self._keys[: batch * (self._offers + 1)].view(batch, self._offers + 1)
        torch.amax(keys[: parts * batch].view(parts, batch), 0, out=offered[:, -1])
        _offer_kernel[batch, triton.cdiv(self._offers, tile)](
            scores, places, offered, count, shard.start, K=self._offers, T=tile
        )
        gathered = shard.gathered(offered)
        torch.amax(gathered[..., -1], 0, out=keys[:batch])
        best, offers = self._best[: batch * size], shard.size * self._offers
        _merge_kernel[(batch,)](
            gathered, best, batch, offers, K=self._offers, POOL=size,
            P=triton.next_power_of_2(offers), num_warps=8,
        )  # fmt: skip
        self._ids = self._all_ids[: batch * size].view(batch, size)
        self._scores = self._base[: steps * batch * size].view(steps, batch, size)
        _fill_kernel[batch, steps, triton.cdiv(size, tile)](
            best, base, self._ids, self._scores, batch, base.stride(0), base.stride(1),
            shard.start, shard.stop, POOL=size, T=tile,
        )  # fmt: skip
        total = self._peers.total(self._scores) if self._peers else None
        if total is None:
            shard.total(self._scores)
        else:
            self._scores = total
        rows = self._rows[: batch * size]
        torch.index_select(self._w2, 0, self._ids.flatten(), out=rows)
        return 1
