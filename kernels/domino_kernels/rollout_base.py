"""Proposals by base logits alone, on a GPU: each row's highest logit, the lowest id on ties."""

import torch
from torch import Tensor

from .rollout_device import matmul_f32
from .rollout_score import first_token, write_tokens
from .rollout_shard import VocabShard

LEAST_PART = 2048  # tokens a key stands for, at least


class BaseRollout:
    """As DominoRollout, without a correction."""

    def __init__(
        self, lm_head: Tensor, target_ids: Tensor | None = None, shard: VocabShard | None = None
    ) -> None:
        """lm_head [V, H]; target_ids [V]: the id that a row of it stands for, if not its place;
        shard: the rows that lm_head has, where other ranks have the others."""
        self._lm_head, self._target_ids, self._shard = lm_head, target_ids, shard

    def run(self, hidden: Tensor, current: Tensor) -> Tensor:
        """hidden [B, n, H] (row j predicts proposal j), current (unused) -> ids [B, n] int64."""
        batch, n, width = hidden.shape
        rows, vocab, device = batch * n, len(self._lm_head), hidden.device
        base = torch.empty(rows, vocab, device=device)
        keys = torch.empty(max(1, vocab // LEAST_PART) * rows, dtype=torch.int64, device=device)
        ids = torch.empty(rows, dtype=torch.int64, device=device)
        matmul_f32(hidden.reshape(rows, width), self._lm_head, base)
        parts, shard = first_token(base, keys, self._shard.start if self._shard else 0), self._shard
        if shard:
            best = keys[: parts * rows].view(parts, rows).amax(0)
            shard.maximum(best)
            keys, parts = best, 1
        write_tokens(keys, parts, ids, early=shard is None)
        return (ids if self._target_ids is None else self._target_ids[ids]).view(batch, n)
