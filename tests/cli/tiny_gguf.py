"""A one-layer llama GGUF with random weights, written as llama.cpp's own converter writes it."""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, FFN = 32, 4, 2, 64
HEAD_DIM = HIDDEN // HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abĠ123", "ab"]
Array = NDArray[np.float32]


def to_llama_cpp(rows: Array, num_heads: int) -> Array:
    """What llama.cpp's own converter does to q and k: the two rotary halves interleaved."""
    interleaved = np.empty_like(rows)
    size = rows.shape[0] // num_heads
    for head in range(num_heads):
        for i in range(size // 2):
            interleaved[head * size + 2 * i] = rows[head * size + i]
            interleaved[head * size + 2 * i + 1] = rows[head * size + size // 2 + i]
    return interleaved


def tiny_weights() -> dict[str, Array]:
    """One layer under its Hugging Face names."""
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HEAD_DIM
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (len(TOKENS), HIDDEN),
        "model.norm.weight": (HIDDEN,),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        layer + "self_attn.k_proj.weight": (kv, HIDDEN),
        layer + "self_attn.v_proj.weight": (kv, HIDDEN),
        layer + "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        layer + "mlp.gate_proj.weight": (FFN, HIDDEN),
        layer + "mlp.up_proj.weight": (FFN, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, FFN),
    }
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}
QUANTIZED = "model.layers.0.mlp.down_proj.weight"


def write_gguf(path: Path, weights: dict[str, Array], *, arch: str = "llama") -> None:
    """A llama GGUF as llama.cpp writes it: q and k permuted, one tensor in Q4_1, the rest F32."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    write_tokenizer(writer)
    for name, values in weights.items():
        if name == QUANTIZED:
            packed = quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(GGUF_NAMES[name], packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
            continue
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        writer.add_tensor(GGUF_NAMES[name], to_llama_cpp(values, heads) if heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages }}")
