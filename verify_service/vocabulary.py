"""The ids whose logits this rank has: local logits in, the best of the whole vocabulary out."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.argmax import argmax
from verify_service.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids `own` of `size`; logits [n, own] in every method."""

    size: int
    own: slice
    ranks: Ranks = ALONE

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Id of the highest logit [n], the lowest on ties, -1 where one is NaN; and its value."""
        best = argmax(logits)
        top = logits.gather(-1, best.clamp(min=0)[:, None])[:, 0].float()
        if self.ranks.size == 1:
            return best, top
        broken = best < 0
        key = _ordered(torch.where(broken, torch.inf, top)) << 32
        key = self.ranks.highest(key + (0x7FFFFFFF - self.own.start - best.clamp(min=0)))
        value = _value(key >> 32)
        return torch.where(value == torch.inf, -1, 0x7FFFFFFF - (key & 0xFFFFFFFF)), value

    def whole(self, logits: Tensor) -> Tensor:
        """Logits of all ids [n, size]; an exchange of all of them, for rows that are drawn."""
        if self.ranks.size == 1:
            return logits
        most = -(-self.size // self.ranks.size)
        parts = self.ranks.stacked(F.pad(logits, (0, most - logits.shape[1])))
        ends = [Ranks(rank, self.ranks.size).share(self.size) for rank in range(self.ranks.size)]
        return torch.cat(
            [part[:, : end.stop - end.start] for part, end in zip(parts, ends, strict=True)], 1
        )

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """ids [n] of the whole vocabulary, table [own, hidden] -> [n, hidden]."""
        if self.ranks.size == 1:
            return F.embedding(ids, table)
        local = ids - self.own.start
        there = (local >= 0) & (local < len(table))
        rows = F.embedding(local.clamp(0, len(table) - 1), table)
        return self.ranks.total(torch.where(there[:, None], rows, 0.0).to(table.dtype))


def _ordered(x: Tensor) -> Tensor:
    """float32 -> int64 in the same order."""
    bits = torch.where(x == 0, 0.0, x).view(torch.int32).long()
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _value(ordered: Tensor) -> Tensor:
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.int().view(torch.float32)
