"""The target model: tokens and page slots in, last hidden states and tapped layer outputs out."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import Batch, causal
from domino_kernels.decoder import LayerShape, Read
from domino_kernels.linear import Linear
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from domino_kernels.stack import Decoder
from serving.checkpoint import Checkpoint
from serving.target_config import TargetConfig


class Target:
    """A dense Llama, Qwen2 or Qwen3 in inference form."""

    def __init__(
        self,
        config: TargetConfig,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        taps: Sequence[int] = (),
        max_positions: int | None = None,
    ) -> None:
        """`taps`: layers whose outputs are returned, in the draft's order.

        `max_positions`: where fewer than the model's context can be stored.
        """
        self.config, self.dtype, self.device = config, dtype, device

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            return checkpoint.tensor(name, shape, dtype).to(device)

        table = (config.vocab_size, config.hidden_size)
        self._embedding = read("model.embed_tokens.weight", table)
        self._norm = read("model.norm.weight", (config.hidden_size,))
        self._lm_head = Linear(read(config.lm_head_name, table))
        positions = min(config.max_context, max_positions or config.max_context)
        rotary = RotaryTable(config.head_dim, config.rope, positions, dtype, device)

        def layer(i: int) -> Read:
            return lambda name, shape: read(f"model.layers.{i}.{name}", shape)

        rules = [causal] * config.num_layers
        self._decoder = Decoder(_layer_shape(config), layer, rules, rotary, taps)

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty KV cache of this model's shape."""
        return self._decoder.shape.new_kv(
            layers=self.config.num_layers,
            pages=pages,
            page_size=page_size,
            dtype=self.dtype,
            device=self.device,
        )

    def forward(self, ids: Tensor, batch: Batch, kv: PagedKV) -> tuple[Tensor, list[Tensor]]:
        """ids [n] at the batch's positions -> residual stream [n, hidden] and the taps' outputs.

        A tap is the residual stream after its layer (hidden_states[layer + 1] in transformers).
        Stores the keys and values of all n positions.
        """
        return self._decoder.forward(F.embedding(ids, self._embedding), batch, kv)

    def logits(self, x: Tensor) -> Tensor:
        """Residual stream [n, hidden] -> logits [n, vocab]."""
        return self._lm_head(rms_norm(x, self._norm, self.config.rms_norm_eps))


def _layer_shape(config: TargetConfig) -> LayerShape:
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
