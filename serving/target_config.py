"""What a target's config.json says: a dense Llama, Qwen2 or Qwen3; others are refused by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.checkpoint import Checkpoint
from serving.fields import Fields

MODEL_TYPES = ("llama", "qwen2", "qwen3")
UNSUPPORTED = ("quantization_config", "num_experts", "num_local_experts", "vision_config")
MAX_CONTEXT_DEFAULT = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Shapes and constants of a target model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_context: int
    tied_embeddings: bool
    attention_bias: bool
    output_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]

    @property
    def lm_head_name(self) -> str:
        """Name of the output projection's tensor."""
        return "model.embed_tokens.weight" if self.tied_embeddings else "lm_head.weight"


def load_target_config(checkpoint: Checkpoint) -> TargetConfig:
    """Reads and checks the config; raises CheckpointError naming the field and the value."""
    fields = Fields(checkpoint.path / "config.json", checkpoint.config)
    model_type = fields.choice("model_type", MODEL_TYPES)
    for name in UNSUPPORTED:
        if fields.get(name) is not None:
            raise fields.refuse(name, fields.get(name), "such checkpoints cannot be served")
    if fields.get("use_sliding_window"):
        raise fields.refuse("use_sliding_window", True, "sliding targets cannot be served")
    fields.choice("hidden_act", ("silu",), "silu")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    bias = model_type == "qwen2" or fields.boolean("attention_bias", False)
    return TargetConfig(
        model_type=model_type,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=fields.rope_theta(),
        max_context=fields.integer("max_position_embeddings", MAX_CONTEXT_DEFAULT),
        tied_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias and model_type != "qwen2",
        qk_norm=model_type == "qwen3",
        eos_token_ids=_eos_token_ids(fields, checkpoint.path),
    )


def _eos_token_ids(fields: Fields, path: Path) -> tuple[int, ...]:
    """generation_config.json's ids win over config.json's, as in transformers."""
    value: Any = fields.get("eos_token_id")
    generation = path / "generation_config.json"
    if generation.exists():
        value = Fields.from_file(generation).get("eos_token_id") or value
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise fields.refuse("eos_token_id", value, "must be an id or a list of ids")
    return tuple(ids)
