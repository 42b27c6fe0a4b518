"""A rank's part of the vocabulary: contiguous rows, the last rank's fewer than the others'."""

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabShard:
    """Tokens start..stop-1 of `vocab`; each of `size` ranks holds `padded` rows."""

    vocab: int
    rank: int
    size: int
    padded: int
    group: dist.ProcessGroup

    @classmethod
    def of(cls, vocab: int, group: dist.ProcessGroup, padded: int | None = None) -> "VocabShard":
        """This process's; ValueError where a rank would hold no token or a token no rank."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        padded = padded or -(-vocab // size)
        if not (size - 1) * padded < vocab <= size * padded:
            raise ValueError(
                f"padded is {padded}: {size} ranks of it do not share {vocab} tokens, "
                f"{-(-vocab // size)} would"
            )
        return cls(vocab=vocab, rank=rank, size=size, padded=padded, group=group)

    @property
    def start(self) -> int:
        """First token."""
        return self.rank * self.padded

    @property
    def stop(self) -> int:
        """Behind the last token."""
        return min(self.start + self.padded, self.vocab)

    @property
    def least(self) -> int:
        """Tokens of the rank that holds fewest."""
        return self.vocab - (self.size - 1) * self.padded

    @property
    def even(self) -> bool:
        """Whether all ranks hold as many tokens."""
        return self.vocab == self.size * self.padded

    def rows(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor [vocab, ..]."""
        return whole[self.start : self.stop].contiguous()

    def maximum(self, values: Tensor) -> None:
        """values, of one shape on every rank = the element-wise maximum over the ranks."""
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)

    def total(self, values: Tensor) -> None:
        """values, of one shape on every rank = the sum over the ranks."""
        dist.all_reduce(values, group=self.group)

    def whole(self, values: Tensor) -> Tensor:
        """This rank's columns [.., tokens] -> all ranks' [.., vocab]."""
        padded = F.pad(values, (0, self.padded - values.shape[-1]))
        together = self.gathered(padded).movedim(0, -2).flatten(-2)
        return together[..., : self.vocab]

    def gathered(self, values: Tensor) -> Tensor:
        """values [..] of one shape on every rank -> [size, ..]."""
        flat = values.contiguous().flatten()
        out = flat.new_empty(self.size * len(flat))
        dist.all_gather_into_tensor(out, flat, group=self.group)
        return out.view(self.size, *values.shape)
