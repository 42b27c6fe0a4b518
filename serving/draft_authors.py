"""The DFlash authors' format: a Qwen3 config with `dflash_config`, with or without a Domino head.

Each field is looked up in `dflash_config` first, then at top level. `projector_type` alone decides
whether the Domino head is there; `architectures` says nothing. Rules: SGLang PRs #23000, #36899.
"""

from collections.abc import Sequence
from pathlib import Path

from serving.checkpoint import Checkpoint
from serving.decoder_config import Defaults, read_decoder
from serving.draft_config import DominoHead, DraftConfig, LayerAttention, TargetSizes
from serving.draft_fields import (
    block_size,
    check_sizes,
    layer_kinds,
    mask_token_id,
    sliding_window,
    tapped_layers,
)
from serving.draft_refusals import refuse_other_anchor, refuse_unsupported
from serving.fields import Fields

PROJECTOR_TYPES = ("domino", "causal_v5")
BLOCK_SIZE = 16
MAX_POSITIONS = 32768


def read_authors(
    checkpoint: Checkpoint, target: TargetSizes | None, tokenizers: Sequence[Path]
) -> DraftConfig:
    """Reads and checks the config against its target; raises CheckpointError naming the field."""
    fields = _fields(checkpoint)
    refuse_unsupported(fields)
    vocab = target.vocab_size if target else None
    sizes = read_decoder(fields, Defaults(max_positions=MAX_POSITIONS, vocab_size=vocab))
    check_sizes(fields, sizes, target)
    domino = _domino_head(fields)
    shift = domino is not None and fields.boolean("shift_label")
    refuse_other_anchor(fields, shift, domino is not None)
    bias, block = fields.boolean("attention_bias", False), block_size(fields, BLOCK_SIZE)
    return DraftConfig(
        **sizes,
        attention_bias=bias,
        output_bias=bias and checkpoint.may_have("layers.0.self_attn.o_proj.bias"),
        mlp_bias=False,
        qk_norm=True,
        format="authors",
        block_size=block,
        target_layer_ids=_target_layer_ids(fields, sizes["num_layers"], target),
        mask_token_id=mask_token_id(fields, sizes["vocab_size"], tokenizers),
        attention=_attention(fields, sizes["num_layers"], block),
        shift_label=shift,
        domino=domino,
        draft_vocab_size=sizes["vocab_size"],
        warnings=tuple(fields.warnings),
    )


def _fields(checkpoint: Checkpoint) -> Fields:
    """Fields of the config, where a nested text_config (of a multimodal target) counts first."""
    config = Fields(checkpoint.config_file, checkpoint.config)
    text = config.object("text_config")
    merged = checkpoint.config | dict(text.top) if text else checkpoint.config
    return Fields(checkpoint.config_file, merged, nested="dflash_config")


def _domino_head(fields: Fields) -> DominoHead | None:
    if fields.get("projector_type") is None:
        if fields.get("gru_hidden_dim") is not None:
            fields.warn("projector_type", "is absent: plain DFlash, although gru_hidden_dim is set")
        return None
    fields.choice("projector_type", PROJECTOR_TYPES)
    prefix = fields.get("pure_draft_prefix_len")
    if prefix != 1 or isinstance(prefix, bool):
        raise fields.refuse("pure_draft_prefix_len", prefix, "only 1 can be served")
    return DominoHead(
        gru_hidden_dim=fields.integer("gru_hidden_dim"), emb_dim=fields.integer("emb_dim")
    )


def _target_layer_ids(
    fields: Fields, num_layers: int, target: TargetSizes | None
) -> tuple[int, ...]:
    name = "num_target_layers"
    declared = None if fields.get(name) is None else fields.integer(name)
    if target and declared is not None and declared != target.num_layers:
        fields.warn(name, f"is {declared}, the target has {target.num_layers} layers")
    layers = target.num_layers if target else declared
    value = fields.get("target_layer_ids")
    if value is None:
        if layers is None:
            raise fields.refuse("target_layer_ids", None, "name the target to choose them")
        value = default_target_layer_ids(fields, num_layers, layers)
        fields.warn("target_layer_ids", f"is absent or null, taking {value}")
    return tapped_layers(fields, "target_layer_ids", value, layers, first=0)


def default_target_layer_ids(fields: Fields, num_layers: int, target_layers: int) -> list[int]:
    """The DFlash authors' choice: evenly spaced from layer 1 to T - 3, by Python's round."""
    if num_layers == 1:
        return [target_layers // 2]
    if target_layers < 4:
        raise fields.refuse(
            "target_layer_ids", None, f"cannot be chosen for a target of {target_layers} layers"
        )
    step = (target_layers - 4) / (num_layers - 1)
    return [round(1 + i * step) for i in range(num_layers)]


def _attention(fields: Fields, num_layers: int, block: int) -> tuple[LayerAttention, ...]:
    """Full layers see the whole block, sliding ones are causal, unless the config says for all."""
    causal = _causal(fields)
    full = LayerAttention(causal=bool(causal))
    kinds = layer_kinds(fields, num_layers)
    if "sliding_attention" not in kinds:
        return (full,) * num_layers
    window = sliding_window(fields)
    sliding = LayerAttention(causal=causal is not False, window=window)
    if window < block:
        if not sliding.causal:
            raise fields.refuse("sliding_window", window, f"must cover the block of {block}")
        fields.warn("sliding_window", f"is {window}, less than the block of {block}")
    return tuple(full if kind == "full_attention" else sliding for kind in kinds)


def _causal(fields: Fields) -> bool | None:
    """`is_causal` or `causal`: masking within the block, for every layer; None: by its kind."""
    stated = {
        name: fields.boolean(name)
        for name in ("is_causal", "causal")
        if fields.get(name) is not None
    }
    if len(set(stated.values())) > 1:
        raise fields.refuse("is_causal", stated["is_causal"], "causal says otherwise")
    return next(iter(stated.values()), None)
