"""The weights of a decoder layer as the step kernels take them: q, k, v and gate, up stacked."""

import torch
from torch import Tensor

from domino_kernels.decoder import LayerShape, Read
from domino_kernels.gpu.few_rows import GatedLinear, GpuLinear
from domino_kernels.gpu.rope_store import Heads


class GpuLayer:
    """The tensors of domino_kernels.decoder.DecoderLayer, by the same names.

    fixed: products add in one order whatever the rows.
    """

    def __init__(self, shape: LayerShape, read: Read, *, fixed: bool = False) -> None:
        s = shape
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        attention = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
        self.qkv = GpuLinear(*stacked(read, attention, s.hidden, bias=s.qkv_bias), fixed=fixed)
        output = {"self_attn.o_proj": s.hidden}
        self.o = GpuLinear(*stacked(read, output, q, bias=s.output_bias), fixed=fixed)
        wide = {"mlp.gate_proj": s.intermediate, "mlp.up_proj": s.intermediate}
        self.gate_up = GatedLinear(*stacked(read, wide, s.hidden, bias=s.mlp_bias), fixed=fixed)
        narrow = {"mlp.down_proj": s.hidden}
        self.down = GpuLinear(*stacked(read, narrow, s.intermediate, bias=s.mlp_bias), fixed=fixed)
        self.norm1 = read("input_layernorm.weight", (s.hidden,))
        self.norm2 = read("post_attention_layernorm.weight", (s.hidden,))
        norms = [f"self_attn.{name}_norm.weight" for name in "qk"]
        self.heads = Heads(
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            eps=s.eps,
            bias=self.qkv.bias,
            q_norm=read(norms[0], (s.head_dim,)) if s.qk_norm else None,
            k_norm=read(norms[1], (s.head_dim,)) if s.qk_norm else None,
        )


def stacked(
    read: Read, sizes: dict[str, int], width: int, *, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Weight [sum of sizes, width] of several projections of one input, and bias [sum of sizes]."""
    weights = [read(f"{name}.weight", (size, width)) for name, size in sizes.items()]
    if not bias:
        return torch.cat(weights), None
    biases = [read(f"{name}.bias", (size,)) for name, size in sizes.items()]
    return torch.cat(weights), torch.cat(biases)
