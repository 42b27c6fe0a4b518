"""The pre-norm decoder layer that targets (Llama, Qwen2, Qwen3) and DFlash drafts share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import Batch, PagedAttention
from domino_kernels.linear import Linear
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import rotate

Read = Callable[[str, tuple[int, ...]], Tensor]  # tensor of a layer by its short name and shape
Total = Callable[[Tensor], Tensor]  # the sum over processes that hold parts of a layer's inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes and options of a decoder layer.

    reads_context: projected rows become keys and values beside the layer's own (DFlash drafts).
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    reads_context: bool = False

    def new_kv(
        self, *, layers: int, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> PagedKV:
        """An empty KV cache for so many layers of this shape."""
        return PagedKV(
            layers=layers,
            pages=pages,
            kv_heads=self.kv_heads,
            page_size=page_size,
            head_dim=self.head_dim,
            dtype=dtype,
            device=device,
        )


def alone(x: Tensor) -> Tensor:
    """The total where one process holds all."""
    return x


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); tensor names as Hugging Face has them."""

    def __init__(self, shape: LayerShape, read: Read, total: Total = alone) -> None:
        self.shape, self._total = shape, total
        s = shape
        self._q_size, self._kv_size = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.norm1 = read("input_layernorm.weight", (s.hidden,))
        self.norm2 = read("post_attention_layernorm.weight", (s.hidden,))
        self.qkv = self._fused_qkv(read, q=self._q_size, k=self._kv_size, v=self._kv_size)
        self.o = fused(read, {"self_attn.o_proj": s.hidden}, self._q_size, bias=s.output_bias)
        self.q_norm = read("self_attn.q_norm.weight", (s.head_dim,)) if s.qk_norm else None
        self.k_norm = read("self_attn.k_norm.weight", (s.head_dim,)) if s.qk_norm else None
        wide = {"mlp.gate_proj": s.intermediate, "mlp.up_proj": s.intermediate}
        self.gate_up = fused(read, wide, s.hidden, bias=s.mlp_bias)
        self.down = fused(read, {"mlp.down_proj": s.hidden}, s.intermediate, bias=s.mlp_bias)
        self.context_kv = (
            self._fused_qkv(read, k=self._kv_size, v=self._kv_size) if s.reads_context else None
        )

    def forward(
        self,
        x: Tensor,
        batch: Batch,
        angles: tuple[Tensor, Tensor],
        kv: PagedKV,
        layer: int,
        attention: PagedAttention,
    ) -> Tensor:
        """x [n, hidden] -> [n, hidden]; stores the rows' KV at the batch's positions."""
        qkv = self.qkv(rms_norm(x, self.norm1, self.shape.eps))
        q, k, v = torch.split(qkv, [self._q_size, self._kv_size, self._kv_size], dim=-1)
        q = self._rotated(q, self.q_norm, angles)
        kv.store(layer, batch.pages, batch.offsets, *self._key_value(k, v, angles))
        x = x + self._total(self.o(attention(q, kv, layer)))
        gate, up = self.gate_up(rms_norm(x, self.norm2, self.shape.eps)).chunk(2, dim=-1)
        return x + self._total(self.down(F.silu(gate) * up))

    def store_context(
        self, rows: Tensor, batch: Batch, angles: tuple[Tensor, Tensor], kv: PagedKV, layer: int
    ) -> None:
        """Projected rows [n, hidden], not normed again, at the batch's positions."""
        assert self.context_kv is not None, "only drafts read projected rows"
        k, v = self.context_kv(rows).chunk(2, dim=-1)
        kv.store(layer, batch.pages, batch.offsets, *self._key_value(k, v, angles))

    def _key_value(
        self, k: Tensor, v: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        return self._rotated(k, self.k_norm, angles), self._heads(v)

    def _rotated(self, x: Tensor, norm: Tensor | None, angles: tuple[Tensor, Tensor]) -> Tensor:
        """x [n, heads * head_dim] -> normed where there is a norm, rotated [n, heads, head_dim]."""
        x = self._heads(x)
        return rotate(x if norm is None else rms_norm(x, norm, self.shape.eps), *angles)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.shape.head_dim)

    def _fused_qkv(self, read: Read, **sizes: int) -> Linear:
        """One linear layer for several projections of the attention's input."""
        names = {f"self_attn.{name}_proj": size for name, size in sizes.items()}
        return fused(read, names, self.shape.hidden, bias=self.shape.qkv_bias)


def fused(read: Read, sizes: dict[str, int], width: int, *, bias: bool) -> Linear:
    """One linear layer [sum of sizes, width] for several projections of the same input."""
    weights = [read(f"{name}.weight", (size, width)) for name, size in sizes.items()]
    if not bias:
        return Linear(torch.cat(weights))
    return Linear(
        torch.cat(weights),
        torch.cat([read(f"{name}.bias", (size,)) for name, size in sizes.items()]),
    )
