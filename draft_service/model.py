"""The draft network: projected rows become context KV, a block of masks becomes hidden states.

DFlash (z-lab/dflash): every layer reads the same projected row of a token as its context, so
context KV is a pure function of the row and its position.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import (
    Batch,
    PagedAttention,
    Visibility,
    block_bidirectional,
    causal,
    sliding,
    sliding_block,
    sliding_causal,
)
from domino_kernels.decoder import DecoderLayer, LayerShape, Read
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig, LayerAttention


class DraftLayer(DecoderLayer):
    """A decoder layer that also turns projected rows into context keys and values."""

    def __init__(self, shape: LayerShape, read: Read) -> None:
        super().__init__(shape, read)
        self._context_kv = self._fused_qkv(read, k=self._kv_size, v=self._kv_size)

    def store_context(
        self, rows: Tensor, batch: Batch, angles: tuple[Tensor, Tensor], kv: PagedKV, layer: int
    ) -> None:
        """rows [n, hidden], not normed again, at the batch's positions."""
        k, v = self._context_kv(rows).chunk(2, dim=-1)
        kv.store(layer, batch.pages, batch.offsets, self._keys(k, angles), self._heads(v))


class DraftModel:
    """DFlash backbone; the embedding is the target's, or the draft's own where it has one."""

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

        self._norm = read("norm.weight", (config.hidden_size,))
        self._rotary = RotaryTable(config.head_dim, config.rope, max_positions, dtype, self.device)
        self._shape = shape = _layer_shape(config)
        self._layers = [
            DraftLayer(shape, lambda name, size, i=i: read(f"layers.{i}.{name}", size))  # type: ignore[misc]
            for i in range(config.num_layers)
        ]

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty draft KV cache."""
        return self._shape.new_kv(
            layers=self.config.num_layers,
            pages=pages,
            page_size=page_size,
            dtype=self.dtype,
            device=self.device,
        )

    def append(self, rows: Tensor, batch: Batch, kv: PagedKV) -> None:
        """Projected rows [n, hidden] -> context KV at the batch's positions."""
        angles = self._rotary.at(batch.positions)
        for i, layer in enumerate(self._layers):
            layer.store_context(rows, batch, angles, kv, i)

    def forward(self, ids: Tensor, batch: Batch, kv: PagedKV) -> Tensor:
        """Blocks [current, mask, ...] flattened to ids [n] -> final hidden states [n, hidden].

        The block's own KV goes to its slots P..P+B-1 and is overwritten by the next append.
        """
        attentions = {
            rule: PagedAttention(
                batch,
                visibility(rule),
                heads=self.config.num_heads,
                kv_heads=self.config.num_kv_heads,
                head_dim=self.config.head_dim,
                dtype=self.dtype,
            )
            for rule in set(self.config.attention)
        }
        angles = self._rotary.at(batch.positions)
        x = F.embedding(ids, self.embedding)
        for i, (layer, rule) in enumerate(zip(self._layers, self.config.attention, strict=True)):
            x = layer.forward(x, batch, angles, kv, i, attentions[rule])
        return rms_norm(x, self._norm, self.config.rms_norm_eps)


def _layer_shape(config: DraftConfig) -> LayerShape:
    return LayerShape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        qkv_bias=config.attention_bias,
        output_bias=config.output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
    )


def visibility(rule: LayerAttention) -> Visibility:
    """What a block's queries see in a layer of this kind."""
    if rule.window is None:
        return causal if rule.causal else block_bidirectional
    if not rule.window_moves:
        return sliding_block(rule.window, causal=rule.causal)
    return sliding_causal(rule.window) if rule.causal else sliding(rule.window)
