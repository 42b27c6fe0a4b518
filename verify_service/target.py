"""The target model: tokens and page slots in, last hidden states and tapped layer outputs out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from domino_kernels.attention import Batch, causal
from domino_kernels.decoder import LayerShape, Read, alone
from domino_kernels.linear import Linear
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from domino_kernels.stack import Decoder
from serving.checkpoint import Checkpoint
from serving.target_config import EMBEDDING, TargetConfig
from verify_service.ranks import ALONE, Ranks
from verify_service.shards import Shard
from verify_service.vocabulary import Vocabulary


class Target:
    """A dense Llama, Qwen2 or Qwen3 in inference form, or one rank's part of it."""

    def __init__(
        self,
        config: TargetConfig,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        taps: Sequence[int] = (),
        max_positions: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`taps`: layers whose outputs are returned, in the draft's order.

        `max_positions`: where fewer than the model's context can be stored.
        """
        shard = Shard(config, ranks)
        self.config, self.dtype, self.device = shard.config, dtype, device
        self.vocabulary = Vocabulary(config.vocab_size, shard.vocab, ranks)

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            return checkpoint.tensor(name, shape, dtype).to(device)

        table = (config.vocab_size, config.hidden_size)
        self._embedding = shard.table(read(EMBEDDING, table))
        self._norm = read("model.norm.weight", (config.hidden_size,))
        self._lm_head = Linear(shard.table(read(config.lm_head_name, table)))
        positions = min(config.max_context, max_positions or config.max_context)
        rotary = RotaryTable(config.head_dim, config.rope, positions, dtype, device)

        def layer(i: int) -> Read:
            whole: Read = lambda name, shape: read(f"model.layers.{i}.{name}", shape)  # noqa: E731
            return shard.layer(whole, bias_after_sum=False)

        rules, total = [causal] * config.num_layers, ranks.total if ranks.size > 1 else alone
        self._decoder = Decoder(layer_shape(self.config), layer, rules, rotary, taps, total)

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
        return self._decoder.forward(self.vocabulary.embed(ids, self._embedding), batch, kv)

    def logits(self, x: Tensor) -> Tensor:
        """Residual stream [n, hidden] -> logits [n, vocab], of this rank's ids."""
        return self._lm_head(rms_norm(x, self._norm, self.config.rms_norm_eps))


def layer_shape(config: TargetConfig) -> LayerShape:
    """Sizes of a target's layers."""
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
