"""Verify attention alone: inputs of a shape, and times beside FA3's, on one GPU."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_verify_model import PAGE
from benchmarks.gpu_verify_timing import graph_us
from domino_kernels.gpu.attention import Queries, paged_attention, pieces, tile_rows
from verify_service.gpu_rows import cut

Keys = tuple[Tensor, Tensor]
PLACINGS = 3

# FA3's microseconds by (batch, width), same shapes, measured on another H200
FA3 = {
    (32, 8, 128, 1024): {
        (1, 1): 10.1, (1, 8): 11.3, (1, 16): 11.4, (8, 1): 16.9, (8, 8): 18.0, (8, 16): 19.6,
        (32, 1): 42.1, (32, 8): 44.2, (32, 16): 46.5,
    },
    (32, 8, 128, 8192): {
        (1, 1): 17.3, (1, 8): 18.3, (1, 16): 18.4, (8, 1): 71.0, (8, 8): 72.5, (8, 16): 74.9,
        (32, 1): 247.0, (32, 8): 250.0, (32, 16): 252.0,
    },
    (12, 2, 256, 1024): {
        (1, 1): 11.5, (1, 8): 14.2, (1, 16): 14.8, (8, 1): 15.0, (8, 8): 18.1, (8, 16): 20.0,
        (32, 1): 29.1, (32, 8): 33.4, (32, 16): 39.4,
    },
    (12, 2, 256, 8192): {
        (1, 1): 17.3, (1, 8): 19.9, (1, 16): 20.9, (8, 1): 42.5, (8, 8): 46.8, (8, 16): 50.7,
        (32, 1): 137.0, (32, 8): 143.0, (32, 16): 149.0,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Heads, then sequences of so many queries each, at the end of `context` keys."""

    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    width: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """q [n, heads, dim], a pair of pages a layer, and how the step would cut this shape."""

    q: Tensor
    layers: list[Keys]
    queries: Queries
    splits: int

    def all_layers(self, attend: Callable[[Tensor, Keys, Queries], object]) -> None:
        """Calls `attend` on each layer."""
        for kv in self.layers:
            attend(self.q, kv, self.queries)

    def placed(self, seed: int) -> "Inputs":
        """The same with the pages at other places, which moves times by some percent."""
        rng, table = torch.Generator("cuda").manual_seed(seed), self.queries.table
        order = torch.randperm(table.numel(), generator=rng, device="cuda").view_as(table).int()
        return replace(self, queries=replace(self.queries, table=order))

    def us(self, attend: Callable[[Tensor, Keys, Queries], object]) -> float:
        """Microseconds a layer."""
        return graph_us(partial(self.all_layers, attend), len(self.layers))


def inputs(shape: Shape) -> Inputs:
    """Random ones; as many layers as the L2 cache does not hold."""
    s, each, group = shape, -(-shape.context // PAGE), shape.heads // shape.kv_heads
    layers = 1 if s.batch * s.context > 2**17 else 4
    sizes = 2, layers, s.batch * each, s.kv_heads, PAGE, s.head_dim
    kv = torch.randn(sizes, device="cuda").bfloat16()
    table = torch.arange(s.batch * each, dtype=torch.int32, device="cuda").view(s.batch, each)
    last = s.context - s.width + 1 + torch.arange(s.width, device="cuda").repeat(s.batch)
    height = tile_rows(s.width, group, s.head_dim, 2)
    tiles = [tile for b in range(s.batch) for tile in cut(b * s.width, s.width, height, b)]
    queries = Queries(
        tiles=torch.tensor(tiles, dtype=torch.int32, device="cuda"),
        tile_rows=height,
        table=table,
        last=last.int(),
    )
    q = torch.randn(s.batch * s.width, s.heads, s.head_dim, device="cuda").bfloat16()
    splits = pieces(len(tiles) * s.kv_heads, height * group, s.head_dim)
    found = Inputs(q=q, layers=list(zip(*kv, strict=True)), queries=queries, splits=splits)
    return found.placed(0)


def fa3_shapes() -> list[tuple[Shape, float]]:
    """Every shape that FA3 was timed at, with its microseconds."""
    return [
        (Shape(heads=heads, kv_heads=kv, head_dim=dim, batch=b, width=w, context=context), us)
        for (heads, kv, dim, context), times in FA3.items()
        for (b, w), us in times.items()
    ]


@torch.inference_mode()
def attention_rows() -> list[dict[str, Any]]:
    """A row a shape of FA3's: microseconds, over FA3's, and TB/s of keys and values read.

    The median of PLACINGS random page tables.
    """
    rows = []
    for shape, fa3_us in fa3_shapes():
        given = inputs(shape)
        attend = partial(paged_attention, splits=given.splits)
        us = statistics.median(given.placed(seed).us(attend) for seed in range(PLACINGS))
        moved = shape.batch * shape.context * shape.kv_heads * shape.head_dim * 2 * 2
        rows.append(
            {"heads": f"{shape.heads}/{shape.kv_heads} x {shape.head_dim}"}
            | {"batch": shape.batch, "width": shape.width, "context": shape.context, "us": us}
            | {"tb_s": moved / us / 1e6, "fa3_us": fa3_us, "over_fa3": us / fa3_us}
        )
    return rows
