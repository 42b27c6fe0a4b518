"""The Domino rollout over several ranks: each holds a part of the head, all follow the same tokens.

The GRU and W1 are whole on every rank. Three ways, all exact in what they claim:
sharded: each rank scores its own tokens with its part of W2, one maximum over the ranks a step;
gather: whole base logits on every rank, then a rollout without communication (mode 0 or K);
compact: whole logits nowhere, mode K from the ranks' best tokens.
"""

from dataclasses import replace
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from .rollout import DominoRollout, Mode
from .rollout_compact import CompactPool
from .rollout_pool import PoolScorer
from .rollout_shard import VocabShard
from .rollout_weights import DominoWeights

Way = Literal["sharded", "gather", "compact"]


class TpRollout(DominoRollout):
    """DominoRollout on one rank of a group; every rank has to run it with the same inputs."""

    def __init__(
        self, weights: DominoWeights, lm_head: Tensor, embedding: Tensor, mode: Mode,
        max_batch: int, shard: VocabShard, way: Way | None = None, *, proposals: int = 15,
        input_table: bool = True, resident: bool = True,
    ) -> None:  # fmt: skip
        """weights, whole; lm_head [shard's tokens, H]; embedding [>= V, H]. ValueError as there.

        way: by default compact for a pool and sharded for the exact modes, which were the fastest
        at every batch on two H200 (benchmarks/rollout_h200_2026-11-30.md).
        """
        if len(lm_head) != shard.stop - shard.start:
            raise ValueError(
                f"lm_head has {len(lm_head)} rows, rank {shard.rank} holds "
                f"{shard.stop - shard.start} tokens"
            )
        pooled = isinstance(mode, int) and 0 < mode < shard.vocab
        way = way or ("compact" if pooled else "sharded")
        if way == ("sharded" if pooled else "compact"):
            raise ValueError(f"{way} does not run mode {mode}")
        local = replace(weights, w2=shard.rows(weights.w2))
        local.check(lm_head, embedding)
        self._shard, self._way = shard, way
        self._offset = 0 if way == "gather" else shard.start
        padding = shard.padded - len(lm_head) if way == "gather" else 0
        head = F.pad(lm_head, (0, 0, 0, padding)) if padding else lm_head
        used = local if way == "sharded" else weights
        self._build(used, head, embedding, mode, max_batch, proposals, input_table, shard.vocab)
        if resident and way == "sharded":
            self._make_resident(local, full=mode == 0, shard=shard)

    def _make_pool(self, size: int) -> PoolScorer:
        whole = self._weights.w2, size, self.proposals, self._max_batch
        return CompactPool(*whole, self._shard) if self._way == "compact" else PoolScorer(*whole)

    def _early(self, step: int) -> bool:
        return self._way == "gather" or (self._way == "compact" and step > 1)

    def _base_logits(self, packed: Tensor) -> Tensor:
        local = DominoRollout._base_logits(self, packed)
        if self._way != "gather":
            return local
        whole = self._shard.gathered(local).transpose(0, 1).reshape(len(packed), -1)
        return whole[:, : self._shard.vocab]

    def _first(self, base: Tensor, n: int) -> int:
        parts = DominoRollout._first(self, base, n)
        later = self._way == "compact" and n > 1  # with what the pool is made of
        return parts if later or self._way == "gather" else self._exchange(parts, len(base))

    def _score(self, j: int, state: Tensor, base: Tensor) -> int:
        parts = DominoRollout._score(self, j, state, base)
        return self._exchange(parts, len(base)) if self._way == "sharded" else parts

    def _exchange(self, parts: int, batch: int) -> int:
        """Keys [parts, B] of this rank -> the best of all ranks' in them; returns their parts.

        Ranks of unequal shards may have left unequal numbers of keys: one key is made of them.
        """
        keys = self._keys[: parts * batch]
        if not self._shard.even:
            keys = self._keys[:batch].copy_(keys.view(parts, batch).amax(0))
            parts = 1
        self._shard.maximum(keys)
        return parts
