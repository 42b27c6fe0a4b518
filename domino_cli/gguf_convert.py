"""A GGUF file of llama architecture in, a Hugging Face folder out (weights in bfloat16).

Blocks are dequantised, so the folder holds exactly the values the quantised file stands for. Only
this module needs gguf; the folder is what the services and transformers read.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


class ConversionError(ValueError):
    """The file is not of the one kind this converter understands; names the field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Metadata of a GGUF file by key."""

    values: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise ConversionError(f"GGUF field {key!r} is missing")
        return self.values[key]

    def require(self, key: str, expected: str) -> None:
        if self[key] != expected:
            raise ConversionError(f"GGUF field {key!r} is {self[key]!r}, supported: {expected!r}")


def unpermute(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows [num_heads * head_dim, ...] from llama.cpp's order back to Hugging Face's.

    llama.cpp stores the two rotary halves of each head interleaved, Hugging Face one after the
    other.
    """
    half = rows.shape[0] // num_heads // 2
    paired = rows.reshape(num_heads, half, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; unknown names are refused."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
    raise ConversionError(f"GGUF tensor {name!r} is not part of a llama model")


def read_weights(
    reader: Any, header: Header, on_tensor: Callable[[int, int], None]
) -> dict[str, torch.Tensor]:
    """Dequantises every tensor to bfloat16; `on_tensor(done, total)` after each."""
    heads = {
        "attn_q": header["llama.attention.head_count"],
        "attn_k": header["llama.attention.head_count_kv"],
    }
    weights = {}
    for index, tensor in enumerate(reader.tensors, start=1):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = unpermute(values, heads[part])
        weights[hf_name(tensor.name)] = torch.from_numpy(values).to(torch.bfloat16)
        on_tensor(index, len(reader.tensors))
    return weights


def model_config(header: Header, *, tied: bool) -> dict[str, Any]:
    """config.json of the model."""
    theta = float(header["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(header["tokenizer.ggml.tokens"]),
        "hidden_size": header["llama.embedding_length"],
        "intermediate_size": header["llama.feed_forward_length"],
        "num_hidden_layers": header["llama.block_count"],
        "num_attention_heads": header["llama.attention.head_count"],
        "num_key_value_heads": header["llama.attention.head_count_kv"],
        "head_dim": header["llama.embedding_length"] // header["llama.attention.head_count"],
        "max_position_embeddings": header["llama.context_length"],
        # Stored as float32; its shortest decimal is the value that was meant.
        "rms_norm_eps": float(str(np.float32(header["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **special_ids(header),
    }


def special_ids(header: Header) -> dict[str, int]:
    """bos, eos and pad ids as config.json and generation_config.json name them."""
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: int(header[f"tokenizer.ggml.{name}_token_id"]) for key, name in names.items()}


def tokenizer(header: Header) -> Tokenizer:
    """Byte-level BPE with single digits: what llama.cpp calls the `smollm` pre-tokenizer."""
    header.require("tokenizer.ggml.model", "gpt2")
    header.require("tokenizer.ggml.pre", "smollm")
    tokens, kinds = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in header["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    result.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    result.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return result


def tokenizer_config(header: Header) -> dict[str, Any]:
    """tokenizer_config.json, the chat template included."""
    tokens = header["tokenizer.ggml.tokens"]
    ids = special_ids(header)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[header["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": header["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": header["tokenizer.chat_template"],
    }


def convert(source: Path, folder: Path, on_tensor: Callable[[int, int], None]) -> int:
    """Writes `folder` (existing, empty) from the GGUF file `source`; returns the tensor count.

    Raises ConversionError for another architecture or tokenizer, or a tensor that is unknown.
    """
    reader = gguf.GGUFReader(source)
    header = Header(values={key: field.contents() for key, field in reader.fields.items()})
    header.require("general.architecture", "llama")
    text = tokenizer(header)  # first: a wrong tokenizer is found in a second
    weights = read_weights(reader, header, on_tensor)
    documents = {
        "config.json": model_config(header, tied="lm_head.weight" not in weights),
        "generation_config.json": special_ids(header),
        "tokenizer_config.json": tokenizer_config(header),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    text.save(str(folder / "tokenizer.json"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file leaves it to its owner alone
    return len(weights)
