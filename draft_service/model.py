"""The draft network: projected rows become context KV, a block of masks becomes hidden states.

DFlash (z-lab/dflash): every layer reads the same projected row of a token as its context, so
context KV is a pure function of the row and its position.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import Batch, Visibility
from domino_kernels.decoder import LayerShape, Read
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from domino_kernels.stack import Decoder
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig, LayerAttention


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
        rotary = RotaryTable(config.head_dim, config.rope, max_positions, dtype, self.device)

        def layer(i: int) -> Read:
            return lambda name, shape: read(f"layers.{i}.{name}", shape)

        rules = [visibility(rule) for rule in config.attention]
        self._decoder = Decoder(layer_shape(config), layer, rules, rotary)

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty draft KV cache."""
        return self._decoder.shape.new_kv(
            layers=self.config.num_layers,
            pages=pages,
            page_size=page_size,
            dtype=self.dtype,
            device=self.device,
        )

    def append(self, rows: Tensor, batch: Batch, kv: PagedKV) -> None:
        """Projected rows [n, hidden] -> context KV at the batch's positions."""
        self._decoder.append(rows, batch, kv)

    def forward(self, ids: Tensor, batch: Batch, kv: PagedKV) -> Tensor:
        """Blocks [current, mask, ...] flattened to ids [n] -> final hidden states [n, hidden].

        The block's own KV goes to its slots P..P+B-1 and is overwritten by the next append.
        """
        x, _ = self._decoder.forward(F.embedding(ids, self.embedding), batch, kv)
        return rms_norm(x, self._norm, self.config.rms_norm_eps)


def layer_shape(config: DraftConfig) -> LayerShape:
    """Sizes and options of the draft's layers."""
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
        reads_context=True,
    )


def visibility(rule: LayerAttention) -> Visibility:
    """What a block's queries see in a layer of this kind."""
    return Visibility(causal=rule.causal, window=rule.window, window_moves=rule.window_moves)
