"""What a draft's config.json says: the DFlash authors' format, with or without the Domino head.

Each field is looked up in `dflash_config` first, then at top level. `projector_type` alone decides
whether the Domino head is there; `architectures` says nothing. Rules: SGLang PRs #23000, #36899.
"""

import logging
from dataclasses import dataclass
from typing import Any

from serving.checkpoint import Checkpoint
from serving.fields import Fields

PROJECTOR_TYPES = ("domino", "causal_v5")
LAYER_TYPES = ("full_attention", "sliding_attention")
BLOCK_SIZE_DEFAULT = 16
MAX_CONTEXT_DEFAULT = 32768

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DominoHead:
    """Sizes of the causal correction: GRU width G, bottleneck width E."""

    gru_hidden_dim: int
    emb_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Shapes and constants of a draft model."""

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
    attention_bias: bool
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    sliding_windows: tuple[int | None, ...]
    shift_label: bool
    domino: DominoHead | None

    @property
    def max_draft_tokens(self) -> int:
        """Most proposals of one block: B with shifted labels, B - 1 otherwise."""
        return self.block_size if self.shift_label else self.block_size - 1


def load_draft_config(
    checkpoint: Checkpoint, *, target_layers: int, target_vocab: int, target_hidden: int
) -> DraftConfig:
    """Reads and checks the config against its target; raises CheckpointError naming the field."""
    fields = Fields(checkpoint.path / "config.json", checkpoint.config, nested="dflash_config")
    num_layers = fields.integer("num_hidden_layers")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    vocab = fields.integer("vocab_size")
    if vocab != target_vocab:
        raise fields.refuse("vocab_size", vocab, f"the target has {target_vocab}")
    if hidden != target_hidden:
        raise fields.refuse("hidden_size", hidden, f"the target has {target_hidden}")
    fields.choice("hidden_act", ("silu",), "silu")
    domino = _domino_head(fields)
    return DraftConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim", hidden // heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=fields.rope_theta(),
        max_context=fields.integer("max_position_embeddings", MAX_CONTEXT_DEFAULT),
        attention_bias=fields.boolean("attention_bias", False),
        block_size=_block_size(fields, domino is not None),
        target_layer_ids=_target_layer_ids(fields, num_layers, target_layers),
        mask_token_id=_mask_token_id(fields, vocab),
        sliding_windows=_sliding_windows(fields, num_layers),
        shift_label=domino is not None and fields.boolean("shift_label"),
        domino=domino,
    )


def _domino_head(fields: Fields) -> DominoHead | None:
    projector = fields.get("projector_type")
    if projector is None:
        return None
    fields.choice("projector_type", PROJECTOR_TYPES)
    prefix = fields.get("pure_draft_prefix_len")
    if prefix != 1 or isinstance(prefix, bool):
        raise fields.refuse("pure_draft_prefix_len", prefix, "only 1 can be served")
    inner, top = fields.inner.get("emb_dim"), fields.top.get("emb_dim")
    if inner is not None and top is not None and inner != top:
        raise fields.refuse("emb_dim", inner, f"the top level says {top!r}; make them equal")
    return DominoHead(
        gru_hidden_dim=fields.integer("gru_hidden_dim"), emb_dim=fields.integer("emb_dim")
    )


def _block_size(fields: Fields, domino: bool) -> int:
    if fields.get("block_size") is None:
        log.warning("%s: block_size is absent, taking %d", fields.source, BLOCK_SIZE_DEFAULT)
    return fields.integer("block_size", BLOCK_SIZE_DEFAULT, minimum=2 if domino else 1)


def _target_layer_ids(fields: Fields, num_layers: int, target_layers: int) -> tuple[int, ...]:
    value: Any = fields.get("target_layer_ids")
    if value is None:
        ids = default_target_layer_ids(num_layers, target_layers)
        log.warning("%s: target_layer_ids is absent, taking %s", fields.source, list(ids))
        return ids
    if not isinstance(value, list) or not value:
        raise fields.refuse("target_layer_ids", value, "must be a non-empty list of layer ids")
    last = target_layers - 1
    for index, layer in enumerate(value):
        name = f"target_layer_ids[{index}]"
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= last:
            raise fields.refuse(name, layer, f"the target has layers 0 to {last}")
        if layer == last:
            raise fields.refuse(name, layer, "ambiguous for the last layer (before or after norm)")
    declared = fields.get("num_target_layers")
    if declared is not None and declared != target_layers:
        log.warning(
            "%s: num_target_layers is %s, the target has %d layers",
            fields.source,
            declared,
            target_layers,
        )
    return tuple(value)


def default_target_layer_ids(num_layers: int, target_layers: int) -> tuple[int, ...]:
    """The DFlash authors' choice: evenly spaced from layer 1 to T - 3, by Python's round."""
    if num_layers == 1:
        return (target_layers // 2,)
    step = (target_layers - 4) / (num_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_layers))


def _mask_token_id(fields: Fields, vocab: int) -> int:
    mask = fields.integer("mask_token_id", minimum=0)
    if mask >= vocab:
        raise fields.refuse("mask_token_id", mask, f"the vocabulary has {vocab} ids")
    return mask


def _sliding_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Window of each layer, None where attention is full."""
    kinds: Any = fields.get("layer_types")
    if kinds is None:
        return (None,) * num_layers
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        raise fields.refuse("layer_types", kinds, f"must be a list of {num_layers} layer types")
    windows: list[int | None] = []
    for index, kind in enumerate(kinds[:num_layers]):
        if kind not in LAYER_TYPES:
            raise fields.refuse(f"layer_types[{index}]", kind, f"only {', '.join(LAYER_TYPES)}")
        windows.append(fields.integer("sliding_window") if kind == "sliding_attention" else None)
    return tuple(windows)
