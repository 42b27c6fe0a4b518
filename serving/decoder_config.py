"""Sizes and constants that targets and drafts share, read from a config and checked."""

from dataclasses import dataclass
from typing import Any

from serving.fields import Fields
from serving.rope_config import Rope, context_limit, read_rope

MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shapes and constants of a stack of decoder layers.

    warnings: what was assumed, for the user to read.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    max_context: int
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of fields a config may leave out; None: the field is required.

    num_kv_heads and head_dim: None is num_heads, and hidden_size / num_heads.
    """

    max_positions: int
    vocab_size: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = None


def read_decoder(fields: Fields, defaults: Defaults) -> dict[str, Any]:
    """Values of DecoderConfig's fields up to max_context; raises CheckpointError by field."""
    fields.choice("hidden_act", ("silu",), "silu")
    fields.refuse_any(["is_neox_style", "rope_is_neox_style"], "only true can be served", (True,))
    fields.refuse_any(["rope_interleaved"], "only false can be served", (False,))
    hidden = fields.integer("hidden_size", defaults.hidden_size)
    heads = fields.integer("num_attention_heads", defaults.num_heads)
    positions = _max_positions(fields, defaults.max_positions)
    rope = _rope(fields, positions, defaults.rope_theta)
    return {
        "vocab_size": fields.integer("vocab_size", defaults.vocab_size),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size", defaults.intermediate_size),
        "num_layers": fields.integer("num_hidden_layers", defaults.num_layers, maximum=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": _kv_heads(fields, heads, defaults.num_kv_heads),
        "head_dim": _head_dim(fields, hidden, heads, defaults.head_dim),
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "rope": rope,
        "max_context": context_limit(rope, positions),
    }


def _max_positions(fields: Fields, default: int) -> int:
    if fields.get("max_position_embeddings") is None:
        fields.warn("max_position_embeddings", f"is absent or null, taking {default}")
    return fields.integer("max_position_embeddings", default)


def _rope(fields: Fields, positions: int, default_theta: float | None) -> Rope:
    rope = read_rope(fields, positions, default_theta)
    if rope.kind == "dynamic":
        fields.warn("rope type", f"is dynamic: served up to the {positions} unscaled positions")
    return rope


def _kv_heads(fields: Fields, heads: int, default: int | None) -> int:
    kv_heads = fields.integer("num_key_value_heads", heads if default is None else default)
    if heads % kv_heads:
        raise fields.refuse(
            "num_key_value_heads", kv_heads, f"must divide num_attention_heads ({heads})"
        )
    return kv_heads


def _head_dim(fields: Fields, hidden: int, heads: int, default: int | None) -> int:
    if fields.get("head_dim") is None and default is None and hidden % heads:
        raise fields.refuse(
            "head_dim",
            None,
            f"num_attention_heads ({heads}) does not divide hidden_size ({hidden})",
        )
    head_dim = fields.integer("head_dim", default or hidden // heads)
    if head_dim % 2:
        raise fields.refuse("head_dim", head_dim, "must be even for the rotary embedding")
    return head_dim
