"""The draft with gradients: weights by the checkpoint's tensor names in, block hidden states out.

The same network as draft_service.model, over many blocks of a row at once; a test holds the two
together. Weights are a plain mapping, so that a trainer keeps float32 masters and passes copies.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.norm import rms_norm
from domino_kernels.rope import inverse_frequencies, rotate
from serving.draft_config import DraftConfig
from training.attention import BlockAttention, DenseAttention
from training.flex import FlexAttention
from training.rows import Anchors, Rows, take

Weights = Mapping[str, Tensor]
Angles = tuple[Tensor, Tensor]


class DraftForward:
    """The backbone of `config`; embedding [vocab, hidden] is the target's and stays frozen.

    flex: by FlexAttention, on a GPU in layers that torch.compile fuses.
    """

    def __init__(self, config: DraftConfig, embedding: Tensor, *, flex: bool = False) -> None:
        self.config, self.embedding = config, embedding
        device = embedding.device
        self._attention: BlockAttention = FlexAttention(device) if flex else DenseAttention()
        self._run_layer: Callable[..., Tensor] = self._layer
        if flex and device.type == "cuda":
            self._run_layer = torch.compile(self._layer, dynamic=False, fullgraph=True)
        # Angles are float32, only their sines and cosines are rounded, as when serving: rounded
        # frequencies would let positions drift at long lengths.
        frequencies = inverse_frequencies(config.rope, config.head_dim)
        self._frequencies = frequencies.to(embedding.device)

    def noise_ids(self, rows: Rows, anchors: Anchors) -> Tensor:
        """[R, N, B]: the anchor's token and masks; dead slots are masks only."""
        size = (*anchors.columns.shape, self.config.block_size)
        ids = torch.full(size, self.config.mask_token_id, device=rows.ids.device)
        known = rows.ids.gather(1, anchors.columns)
        ids[..., 0] = torch.where(anchors.live, known, ids[..., 0])
        return ids

    def hidden(self, weights: Weights, rows: Rows, anchors: Anchors) -> Tensor:
        """Normed hidden states of every block [R, N, B, hidden], in the weights' dtype.

        The residual stream is float32; matrix products are in the weights' dtype.
        """
        config, dtype = self.config, weights["fc.weight"].dtype
        context = F.linear(rows.features.to(dtype), weights["fc.weight"])
        context = self._norm(context, weights["hidden_norm.weight"])
        at_context, at_blocks = self._positions(rows, anchors, dtype)
        sees = {
            rule: self._attention.sees(anchors, rows.starts, config.block_size, rule)
            for rule in set(config.attention)
        }
        x = F.embedding(self.noise_ids(rows, anchors), self.embedding).float()
        for i, rule in enumerate(config.attention):
            layer = {n.removeprefix(f"layers.{i}."): w for n, w in weights.items()}
            x = self._run_layer(layer, x, context, (at_context, at_blocks), sees[rule])
        return self._norm(x.to(dtype), weights["norm.weight"])

    def _layer(
        self, w: Weights, x: Tensor, context: Tensor, at: tuple[Angles, Angles], sees: Any
    ) -> Tensor:
        dtype = context.dtype
        h = self._norm(x.to(dtype), w["input_layernorm.weight"])
        q = self._heads(F.linear(h, w["self_attn.q_proj.weight"], w.get("self_attn.q_proj.bias")))
        if self.config.qk_norm:
            q = self._norm(q, w["self_attn.q_norm.weight"])
        kv = self._keys_values(w, context, at[0]), self._keys_values(w, h, at[1])
        attended = self._attention(rotate(q, *at[1]), *kv, sees)
        x = x + F.linear(attended, w["self_attn.o_proj.weight"], w.get("self_attn.o_proj.bias"))
        h = self._norm(x.to(dtype), w["post_attention_layernorm.weight"])
        gate, up = (F.linear(h, w[f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        return x + F.linear(F.silu(gate) * up, w["mlp.down_proj.weight"])

    def _keys_values(self, w: Weights, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        k, v = (
            self._heads(
                F.linear(x, w[f"self_attn.{n}_proj.weight"], w.get(f"self_attn.{n}_proj.bias"))
            )
            for n in "kv"
        )
        if self.config.qk_norm:
            k = self._norm(k, w["self_attn.k_norm.weight"])
        return rotate(k, *angles), v

    def _positions(self, rows: Rows, anchors: Anchors, dtype: torch.dtype) -> tuple[Angles, Angles]:
        """Angles of the context [R, S] and of the blocks [R, N, B], counted in each document."""
        columns = torch.arange(rows.ids.shape[1], device=rows.ids.device)
        first = take(rows.starts, anchors.columns[..., None])
        blocks = anchors.positions(0, self.config.block_size) - first
        return self._angles(columns - rows.starts, dtype), self._angles(blocks, dtype)

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        angles = positions[..., None, None].float() * self._frequencies
        factor = self.config.rope.attention_factor
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.config.head_dim)
