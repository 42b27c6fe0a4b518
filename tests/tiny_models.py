"""Tiny random checkpoints, written by transformers, which is also their oracle."""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

VOCAB = 131
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # spreads the logits, so that argmax is no near-tie
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ORIGINAL = {"original_max_position_embeddings": 64}
FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SHAPE, rope_theta=5e5, tie_word_embeddings=True),
    "llama_bias": lambda: LlamaConfig(**SHAPE, attention_bias=True, head_dim=12),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False),
    "qwen3_bias": lambda: Qwen3Config(**SHAPE, attention_bias=True, tie_word_embeddings=True),
    "llama_mlp_bias": lambda: LlamaConfig(**SHAPE, mlp_bias=True),
    "llama_linear": lambda: LlamaConfig(**SHAPE, rope_scaling=scaling("linear")),
    "llama_dynamic": lambda: LlamaConfig(**SHAPE, rope_scaling=scaling("dynamic")),
    "llama_llama3": lambda: LlamaConfig(
        **SHAPE,
        rope_theta=5e5,
        rope_scaling=scaling("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    ),
    "qwen2_yarn": lambda: Qwen2Config(**SHAPE, rope_scaling=scaling("yarn", **ORIGINAL)),
    "qwen3_yarn": lambda: Qwen3Config(
        **SHAPE,
        rope_parameters=scaling("yarn", rope_theta=1e6, beta_fast=16.0, truncate=False, **ORIGINAL),
    ),
}


def scaling(kind: str, **parameters: Any) -> dict[str, Any]:
    """A scaling of the rotary embedding by 4, from 64 positions to the 256 of SHAPE."""
    return {"rope_type": kind, "factor": 4.0} | parameters


def write_target(family: str, folder: Path, *, spread: float | None = None) -> Any:
    """Saves a random model of the family in `folder`; returns transformers' float32 model.

    spread: standard deviation of its matrices; SHAPE's without it.
    """
    torch.manual_seed(zlib.crc32(family.encode()))
    config = FAMILIES[family]()
    config.initializer_range = spread or config.initializer_range
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    return model.eval()


def write_draft(target: Path, folder: Path, *, block_size: int, domino: bool, shift: bool) -> None:
    """A random draft that fits the target's shapes; it accepts almost nothing, on purpose."""
    from safetensors.torch import save_file

    shape = json.loads((target / "config.json").read_text())
    hidden, vocab, layers, gru, bottleneck = shape["hidden_size"], shape["vocab_size"], 2, 24, 16
    heads, kv_heads, dim, inner = 4, 2, 12, 56
    head = {
        "projector_type": "domino",
        "gru_hidden_dim": gru,
        "emb_dim": bottleneck,
        "pure_draft_prefix_len": 1,
        "shift_label": shift,
    }
    taps = [1, 2]
    config = {
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "intermediate_size": inner,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "block_size": block_size,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": taps} | (head if domino else {}),
    }
    shapes = {
        "fc.weight": (hidden, len(taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(layers):
        shapes |= {
            f"layers.{layer}.{name}": size
            for name, size in {
                "input_layernorm.weight": (hidden,),
                "post_attention_layernorm.weight": (hidden,),
                "self_attn.q_proj.weight": (heads * dim, hidden),
                "self_attn.k_proj.weight": (kv_heads * dim, hidden),
                "self_attn.v_proj.weight": (kv_heads * dim, hidden),
                "self_attn.o_proj.weight": (hidden, heads * dim),
                "self_attn.q_norm.weight": (dim,),
                "self_attn.k_norm.weight": (dim,),
                "mlp.gate_proj.weight": (inner, hidden),
                "mlp.up_proj.weight": (inner, hidden),
                "mlp.down_proj.weight": (hidden, inner),
            }.items()
        }
    if domino:
        shapes |= {
            "prefix_gru.weight_ih_l0": (3 * gru, hidden),
            "prefix_gru.weight_hh_l0": (3 * gru, gru),
            "embed_proj.0.weight": (bottleneck, hidden + gru),
            "embed_proj.2.weight": (vocab, bottleneck),
        }
    generator = torch.Generator().manual_seed(7)
    folder.mkdir(exist_ok=True)
    tensors = {n: torch.randn(s, generator=generator) * 0.3 for n, s in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
