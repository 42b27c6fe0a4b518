"""How a model's attention is cut into programs: rows a tile and pieces of its keys."""

from dataclasses import dataclass
from typing import Any

from triton import next_power_of_2

from domino_kernels.gpu.attention import KeyTiles, pieces, tile_rows

LEAST_SEGMENT, MOST_PIECES = 256, 32
FIXED_WALK = KeyTiles(64, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Sizes of a model's heads on this GPU; `segment` 0 cuts whatever way is fastest for a batch.

    With `segment`, keys are cut at its multiples, tiles have one height and pieces are merged in
    one order: a row's result has the same bits whatever rows surround it. `context` is then the
    longest a sequence can be.
    """

    heads: int
    kv_heads: int
    head_dim: int
    element_size: int
    segment: int = 0
    context: int = 0

    @classmethod
    def fixed(
        cls, *, heads: int, kv_heads: int, head_dim: int, element_size: int, context: int
    ) -> "AttentionPlan":
        """The same bits for a row in every batch; no more than MOST_PIECES pieces a sequence."""
        step = FIXED_WALK.keys
        segment = max(LEAST_SEGMENT, -(-context // (MOST_PIECES * step)) * step)
        return cls(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            element_size=element_size,
            segment=segment,
            context=context,
        )

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.heads // self.kv_heads

    def tile_rows(self, rows: int) -> int:
        """Rows of a tile where a sequence has so many."""
        if self.segment:
            return max(1, (64 if self.element_size == 2 else 16) // self.group)
        return tile_rows(rows, self.group, self.head_dim, self.element_size)

    def splits(self, tiles: int, height: int, longest: int) -> int:
        """Programs that share a tile's keys; longest: positions of the longest sequence."""
        if self.segment:
            return -(-longest // self.segment)
        return pieces(tiles * self.kv_heads, height * self.group)

    def fixed_bytes(self, rows: int) -> int:
        """Of the parts that `segment` makes of so many rows at the end of the longest context."""
        if not self.segment:
            return 0
        height = self.tile_rows(rows)
        parts = -(-rows // height) * self.kv_heads * self.splits(1, height, self.context)
        channels: int = max(16, next_power_of_2(self.head_dim))
        return parts * 64 * channels * 4

    def options(self) -> dict[str, Any]:
        """Of `paged_attention`, beside the splits."""
        if not self.segment:
            return {}
        most = -(-self.context // self.segment)
        return {"least": self.segment, "merged": most, "walk": FIXED_WALK}
