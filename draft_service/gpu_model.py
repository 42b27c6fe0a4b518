"""The draft network on a GPU: rows into every layer's pages, blocks into hidden states.

The arithmetic is draft_service.model's, through the kernels of domino_kernels.gpu; every launch
reads its indices from the device, so that a pass can be one CUDA graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import Visibility
from domino_kernels.decoder import LayerShape, Read
from domino_kernels.gpu.attention import Queries, paged_attention, tile_rows
from domino_kernels.gpu.context_store import ContextHeads, context_store
from domino_kernels.gpu.few_rows import GpuLinear
from domino_kernels.gpu.layer import GpuLayer, stacked
from domino_kernels.gpu.norm import add_rms_norm
from domino_kernels.gpu.rope_store import rope_store
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from draft_service.model import layer_shape, visibility
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Where rows go: positions, slots [n] int32; a slot is page * page_size + offset, or -1."""

    positions: Tensor
    slots: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of a pass, [current, mask, ...] each.

    ids [batch, block] int32. queries: who sees what under each rule of the model. used: the rows of
    a block that are asked for, and what these see under the last layer's rule.
    """

    ids: Tensor
    rows: Rows
    queries: tuple[Queries, ...]
    splits: int
    used: slice
    used_queries: Queries
    used_splits: int

    @property
    def cut(self) -> bool:
        """Whether the last layer leaves the other rows out: where they are most of a block."""
        return 2 * (self.used.stop - self.used.start) <= self.ids.shape[1]  # type: ignore[no-any-return]


class GpuDraft:
    """DFlash backbone on one GPU; the embedding is the target's, or the draft's own."""

    def __init__(
        self,
        config: DraftConfig,
        checkpoint: Checkpoint,
        embedding: Tensor,
        *,
        max_positions: int,
        dtype: torch.dtype,
    ) -> None:
        """embedding [vocab, hidden]; its device is the model's."""
        self.config, self.dtype, self.device = config, dtype, embedding.device
        self.embedding = embedding

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            return checkpoint.tensor(name, shape, dtype).to(self.device)

        def layer(i: int) -> Read:
            return lambda name, shape: read(f"layers.{i}.{name}", shape)

        self._norm = read("norm.weight", (config.hidden_size,))
        rotary = RotaryTable(config.head_dim, config.rope, max_positions, dtype, self.device)
        self._angles = rotary.cos, rotary.sin
        self.shape, reads = layer_shape(config), [layer(i) for i in range(config.num_layers)]
        self._layers = [GpuLayer(self.shape, read_layer) for read_layer in reads]
        self._context, self._context_heads = _context(self.shape, reads, self._layers)
        rules = [visibility(rule) for rule in config.attention]
        self.rules: tuple[Visibility, ...] = tuple(dict.fromkeys(rules))
        self._rule_of = [self.rules.index(rule) for rule in rules]

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty draft KV cache."""
        return self.shape.new_kv(
            layers=self.config.num_layers,
            pages=pages,
            page_size=page_size,
            dtype=self.dtype,
            device=self.device,
        )

    @property
    def last_rule(self) -> int:
        """Place in `rules` of the last layer's."""
        return self._rule_of[-1]

    def tile_rows(self, rows: int) -> int:
        """Rows of an attention tile where a block has so many."""
        group = self.shape.heads // self.shape.kv_heads
        return tile_rows(rows, group, self.shape.head_dim, self.dtype.itemsize)

    def append(self, projected: Tensor, rows: Rows, kv: PagedKV) -> None:
        """Projected rows [n, hidden] -> context KV of every layer in the rows' slots."""
        parts = self._context(projected)
        pages = kv.k, kv.v
        context_store(parts, self._context_heads, self._angles, rows.positions, rows.slots, pages)

    def forward(self, blocks: Blocks, kv: PagedKV) -> Tensor:
        """Final hidden states [batch, used, hidden] of the rows asked for.

        The block's own KV goes to its slots and is overwritten by the next append.
        """
        batch = len(blocks.ids)
        x = F.embedding(blocks.ids.flatten(), self.embedding)
        parts = bias = None
        for i, layer in enumerate(self._layers):
            normed = add_rms_norm(x, parts, layer.norm1, self.shape.eps, bias=bias)
            pages, rows = (kv.k[i], kv.v[i]), blocks.rows
            qkv = layer.qkv(normed)
            q = rope_store(qkv, layer.heads, self._angles, rows.positions, rows.slots, pages)
            queries, splits = blocks.queries[self._rule_of[i]], blocks.splits
            if i + 1 == len(self._layers) and blocks.cut:
                x, q = (_rows_of(t, batch, blocks.used) for t in (x, q))
                queries, splits = blocks.used_queries, blocks.used_splits
            seen = paged_attention(q, pages, queries, splits=splits)
            parts = layer.o(seen.view(len(x), -1))
            normed = add_rms_norm(x, parts, layer.norm2, self.shape.eps, bias=layer.o.bias)
            parts, bias = layer.down(layer.gate_up.gated(normed)), layer.down.bias
        hidden = add_rms_norm(x, parts, self._norm, self.shape.eps, bias=bias)
        hidden = hidden.view(batch, -1, self.shape.hidden)
        return hidden if blocks.cut else hidden[:, blocks.used]


def _rows_of(x: Tensor, batch: int, rows: slice) -> Tensor:
    """The same rows of every block: x [batch * block, ...] -> [batch * rows, ...]."""
    return x.view(batch, -1, *x.shape[1:])[:, rows].reshape(-1, *x.shape[1:])


def _context(
    shape: LayerShape, reads: list[Read], layers: list[GpuLayer]
) -> tuple[GpuLinear, ContextHeads]:
    """All layers' k and v projections as one, since every layer reads the same rows."""
    size = shape.kv_heads * shape.head_dim
    names = {"self_attn.k_proj": size, "self_attn.v_proj": size}
    weights, biases = [], []
    for read in reads:
        weight, bias = stacked(read, names, shape.hidden, bias=shape.qkv_bias)
        weights.append(weight)
        biases += [] if bias is None else [bias]
    linear = GpuLinear(torch.cat(weights), torch.cat(biases) if biases else None)
    norms = [layer.heads.k_norm for layer in layers if layer.heads.k_norm is not None]
    k_norm = torch.stack(norms) if norms else None
    return linear, ContextHeads(eps=shape.eps, bias=linear.bias, k_norm=k_norm)
