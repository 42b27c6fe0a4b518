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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes and options of a decoder layer."""

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


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); tensor names as Hugging Face has them."""

    def __init__(self, shape: LayerShape, read: Read) -> None:
        self.shape = shape
        s = shape
        self._q_size, self._kv_size = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self._norm1 = read("input_layernorm.weight", (s.hidden,))
        self._norm2 = read("post_attention_layernorm.weight", (s.hidden,))
        self._qkv = self._fused_qkv(read, q=self._q_size, k=self._kv_size, v=self._kv_size)
        self._o = fused(read, {"self_attn.o_proj": s.hidden}, self._q_size, bias=s.output_bias)
        if s.qk_norm:
            self._q_norm = read("self_attn.q_norm.weight", (s.head_dim,))
            self._k_norm = read("self_attn.k_norm.weight", (s.head_dim,))
        wide = {"mlp.gate_proj": s.intermediate, "mlp.up_proj": s.intermediate}
        self._gate_up = fused(read, wide, s.hidden, bias=s.mlp_bias)
        self._down = fused(read, {"mlp.down_proj": s.hidden}, s.intermediate, bias=s.mlp_bias)

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
        qkv = self._qkv(rms_norm(x, self._norm1, self.shape.eps))
        q, k, v = torch.split(qkv, [self._q_size, self._kv_size, self._kv_size], dim=-1)
        q = self._heads(q)
        if self.shape.qk_norm:
            q = rms_norm(q, self._q_norm, self.shape.eps)
        kv.store(layer, batch.pages, batch.offsets, self._keys(k, angles), self._heads(v))
        x = x + self._o(attention(rotate(q, *angles), kv, layer))
        gate, up = self._gate_up(rms_norm(x, self._norm2, self.shape.eps)).chunk(2, dim=-1)
        return x + self._down(F.silu(gate) * up)

    def _keys(self, k: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """k [n, kv_heads * head_dim] -> normed and rotated [n, kv_heads, head_dim]."""
        k = self._heads(k)
        if self.shape.qk_norm:
            k = rms_norm(k, self._k_norm, self.shape.eps)
        return rotate(k, *angles)

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
