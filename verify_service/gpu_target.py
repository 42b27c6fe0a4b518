"""The target on a GPU: rows in, the head's input and the draft's projected rows out.

The arithmetic is verify_service.target's, through the kernels of domino_kernels.gpu; every launch
of a pass reads its indices from the device, so that a pass can be one CUDA graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.gpu.attention import paged_attention, tile_rows
from domino_kernels.gpu.few_rows import GpuLinear
from domino_kernels.gpu.norm import add_rms_norm, norm_to_slots
from domino_kernels.gpu.rope_store import Heads, rope_store
from domino_kernels.gpu.silu import silu_mul
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from serving.target_config import EMBEDDING, TargetConfig
from verify_service.gpu_rows import Rows

Read = Callable[[str, tuple[int, ...]], Tensor]  # a tensor by name and shape, on the device


@dataclass(frozen=True, slots=True)
class Projection:
    """The draft's input projection: hidden_norm(fc(taps)), with the draft's epsilon."""

    fc: GpuLinear
    norm: Tensor
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer's weights; q, k, v and gate, up are stacked."""

    heads: Heads
    norm1: Tensor
    qkv: GpuLinear
    o: GpuLinear
    norm2: Tensor
    gate_up: GpuLinear
    down: GpuLinear


class GpuTarget:
    """A dense Llama, Qwen2 or Qwen3 on one GPU."""

    def __init__(
        self,
        config: TargetConfig,
        read: Read,
        *,
        dtype: torch.dtype,
        device: torch.device,
        taps: Sequence[int] = (),
        projection: Projection | None = None,
        max_positions: int | None = None,
    ) -> None:
        """`taps`: layers whose outputs `projection` takes, in the draft's order."""
        self.config, self.dtype, self.device = config, dtype, device
        self.projection, self._taps = projection, tuple(taps)
        table = (config.vocab_size, config.hidden_size)
        self._embedding = read(EMBEDDING, table)
        head = self._embedding if config.tied_embeddings else read(config.lm_head_name, table)
        self.head, self._norm = GpuLinear(head), read("model.norm.weight", (config.hidden_size,))
        positions = min(config.max_context, max_positions or config.max_context)
        rotary = RotaryTable(config.head_dim, config.rope, positions, dtype, device)
        cos, sin = rotary.at(torch.arange(positions, device=device))
        self._angles = cos.squeeze(1), sin.squeeze(1)
        self.layers = [
            _layer(config, lambda name, shape, i=i: read(f"model.layers.{i}.{name}", shape))  # type: ignore[misc]
            for i in range(config.num_layers)
        ]

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty KV cache of this model's shape."""
        c = self.config
        return PagedKV(
            layers=c.num_layers,
            pages=pages,
            kv_heads=c.num_kv_heads,
            page_size=page_size,
            head_dim=c.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads and kv heads."""
        return self.config.num_heads, self.config.num_kv_heads

    def tile_rows(self, rows: int) -> int:
        """Rows of an attention tile where a sequence has so many."""
        c = self.config
        return tile_rows(rows, c.num_heads // c.num_kv_heads, c.head_dim, self.dtype.itemsize)

    def forward(self, rows: Rows, kv: PagedKV, table: Tensor | None) -> Tensor:
        """Normed last hidden states [n, hidden]; stores the rows' KV in their slots.

        With a projection, `table` [slots, hidden] receives the projected rows in theirs.
        """
        x, eps = F.embedding(rows.ids, self._embedding), self.config.rms_norm_eps
        taps = x.new_empty(len(x), len(self._taps), x.shape[1])
        parts = bias = tap = None
        for i, layer in enumerate(self.layers):
            normed = add_rms_norm(x, parts, layer.norm1, eps, bias=bias, tap=tap)
            pages = kv.k[i], kv.v[i]
            qkv = layer.qkv(normed)
            q = rope_store(qkv, layer.heads, self._angles, rows.positions, rows.slots, pages)
            seen = paged_attention(q, pages, rows.queries, splits=rows.splits)
            parts = layer.o(seen.view(len(x), -1))
            normed = add_rms_norm(x, parts, layer.norm2, eps, bias=layer.o.bias)
            wide = layer.gate_up(normed)
            gated = silu_mul(wide, x.dtype, layer.gate_up.bias)
            parts, bias = layer.down(gated), layer.down.bias
            tap = taps[:, self._taps.index(i)] if i in self._taps else None
        normed = add_rms_norm(x, parts, self._norm, eps, bias=bias, tap=tap)
        if self.projection and table is not None:
            p = self.projection
            norm_to_slots(p.fc(taps.view(len(x), -1)), p.norm, p.eps, table, rows.slots)
        return normed

    def logits(self, normed: Tensor) -> Tensor:
        """Normed hidden states [n, hidden] -> logits [n, vocab]."""
        return self.head(normed)[0]


def _layer(config: TargetConfig, read: Read) -> Layer:
    c, d = config, config.head_dim
    q, kv, hidden, wide = c.num_heads * d, c.num_kv_heads * d, c.hidden_size, c.intermediate_size

    def linear(width: int, names: dict[str, int], *, bias: bool) -> GpuLinear:
        weights = [read(f"{name}.weight", (size, width)) for name, size in names.items()]
        biases = [read(f"{name}.bias", (size,)) for name, size in names.items() if bias]
        return GpuLinear(torch.cat(weights), torch.cat(biases) if bias else None)

    sizes = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
    qkv = linear(hidden, sizes, bias=c.attention_bias)
    norms = [read(f"self_attn.{n}_norm.weight", (d,)) if c.qk_norm else None for n in "qk"]
    return Layer(
        heads=Heads(
            heads=c.num_heads,
            kv_heads=c.num_kv_heads,
            head_dim=d,
            eps=c.rms_norm_eps,
            bias=qkv.bias,
            q_norm=norms[0],
            k_norm=norms[1],
        ),
        norm1=read("input_layernorm.weight", (hidden,)),
        qkv=qkv,
        o=linear(q, {"self_attn.o_proj": hidden}, bias=c.output_bias),
        norm2=read("post_attention_layernorm.weight", (hidden,)),
        gate_up=linear(hidden, {"mlp.gate_proj": wide, "mlp.up_proj": wide}, bias=c.mlp_bias),
        down=linear(wide, {"mlp.down_proj": hidden}, bias=c.mlp_bias),
    )
