"""How a model's attention is cut into programs: rows a tile and pieces of its keys."""

from dataclasses import dataclass

from torch import Tensor
from triton import next_power_of_2

from domino_kernels.gpu.attention import Queries, paged_attention, pieces, tile_rows
from domino_kernels.gpu.attention_fixed import Cuts, fixed_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Sizes of a model's heads on this GPU; without `cuts`, whatever way is fastest for a batch.

    With `cuts`, tiles have one height and keys are cut at its positions: a row's result has the
    same bits whatever rows surround it.
    """

    heads: int
    kv_heads: int
    head_dim: int
    element_size: int
    cuts: Cuts | None = None

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    def tile_rows(self, rows: int) -> int:
        """Rows of a tile where a sequence has so many."""
        if self.cuts:
            return max(1, (64 if self.element_size == 2 else 16) // self.group)
        return tile_rows(rows, self.group, self.head_dim, self.element_size)

    def splits(self, tiles: int, height: int, longest: int) -> int:
        """Pieces of a tile's keys; longest: positions of the longest sequence."""
        if self.cuts:
            return self.cuts.pieces(longest)
        return pieces(tiles * self.kv_heads, height * self.group, self.head_dim)

    def attend(self, q: Tensor, kv: tuple[Tensor, Tensor], queries: Queries, splits: int) -> Tensor:
        """Attention of q [n, heads, head_dim] over paged kv, as `splits` says."""
        if self.cuts:
            return fixed_attention(q, kv, queries, self.cuts, splits)
        return paged_attention(q, kv, queries, splits=splits)

    def fixed_bytes(self, rows: int) -> int:
        """Of the parts that `cuts` makes of so many rows at the end of the longest context."""
        if not self.cuts:
            return 0
        parts = -(-rows // self.tile_rows(rows)) * self.kv_heads * self.cuts.most
        channels: int = max(16, next_power_of_2(self.head_dim))
        return parts * 64 * channels * 4
