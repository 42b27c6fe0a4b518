"""The speculators format: `transformer_layer_config` for the network, the rest at top level.

Layer ids count hidden states, so that id i is the output of layer i - 1; the file may have its own
embedding, and a head over a reduced vocabulary whose ids `d2t` maps.
"""

from collections.abc import Sequence
from pathlib import Path

from serving.checkpoint import Checkpoint
from serving.decoder_config import Defaults, read_decoder
from serving.draft_config import DraftConfig, LayerAttention, TargetSizes
from serving.draft_fields import (
    block_size,
    check_sizes,
    layer_kinds,
    mask_token_id,
    sliding_window,
    tapped_layers,
)
from serving.draft_refusals import SPECULATORS_DOMINO, refuse_algorithm, refuse_unsupported
from serving.fields import Fields

MODEL_TYPE, LAYERS = "speculators_model_type", "transformer_layer_config"
# The format leaves out what equals the default of transformers' Qwen3Config or of its own schema.
QWEN3 = Defaults(
    max_positions=32768,
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    rope_theta=10000.0,
)
BLOCK_SIZE = 8
DRAFT_VOCAB_SIZE = 32000


def read_speculators(
    checkpoint: Checkpoint, target: TargetSizes | None, tokenizers: Sequence[Path]
) -> DraftConfig:
    """Reads and checks the config against its target; raises CheckpointError naming the field."""
    fields = Fields(checkpoint.config_file, checkpoint.config)
    layer = _layer_fields(fields)
    sizes = read_decoder(layer, QWEN3)
    check_sizes(layer, sizes, target)
    if fields.integer("target_hidden_size", sizes["hidden_size"]) != sizes["hidden_size"]:
        raise fields.refuse(
            "target_hidden_size",
            fields.get("target_hidden_size"),
            f"only drafts of the target's own hidden size ({sizes['hidden_size']}) can be served",
        )
    bias, block = layer.boolean("attention_bias", False), block_size(fields, BLOCK_SIZE)
    taps, layers = fields.get("aux_hidden_state_layer_ids"), target.num_layers if target else None
    anchor = _sample_from_anchor(fields, block)
    return DraftConfig(
        **sizes,
        attention_bias=bias,
        output_bias=bias and checkpoint.may_have("layers.0.self_attn.o_proj.bias"),
        mlp_bias=False,
        qk_norm=True,
        format="speculators",
        block_size=block,
        target_layer_ids=tapped_layers(fields, "aux_hidden_state_layer_ids", taps, layers, first=1),
        mask_token_id=mask_token_id(fields, sizes["vocab_size"], tokenizers),
        attention=_attention(fields, layer, sizes["num_layers"]),
        shift_label=anchor,
        domino=None,
        draft_vocab_size=_draft_vocab_size(fields, sizes["vocab_size"], checkpoint),
        own_embedding=checkpoint.may_have("embed_tokens.weight"),
        own_head=checkpoint.may_have("lm_head.weight"),
        warnings=tuple(fields.warnings),
    )


def _layer_fields(fields: Fields) -> Fields:
    """Fields of the network; everything that is no DFlash of this format is refused."""
    kind = fields.get(MODEL_TYPE)
    if kind != "dflash":
        raise fields.refuse(MODEL_TYPE, kind, "only dflash can be served")
    fields.refuse_any(["dflash_config"], f"is of the authors' format and {MODEL_TYPE} is not")
    fields.refuse_any(["projector_type"], SPECULATORS_DOMINO)
    fields.refuse_any(["causal", "is_causal"], "is no field of the speculators format; remove it")
    refuse_unsupported(fields)
    if speculators := fields.object("speculators_config"):
        refuse_algorithm(speculators)
    layer = fields.object(LAYERS)
    if layer is None:
        raise fields.refuse(LAYERS, None, "must describe the draft's layers")
    layer.choice("model_type", ("qwen3",), "qwen3")
    refuse_unsupported(layer)
    return layer


def _sample_from_anchor(fields: Fields, block: int) -> bool:
    """Whether row 0 proposes; checked against the number of tokens the file says it proposes."""
    if fields.get("sample_from_anchor") is None:
        fields.warn("sample_from_anchor", "is absent or null, taking false: row 0 proposes nothing")
    anchor = fields.boolean("sample_from_anchor", False)
    speculators = fields.object("speculators_config")
    methods = (speculators.get("proposal_methods") if speculators else None) or []
    for method in methods if isinstance(methods, list) else []:
        tokens = method.get("speculative_tokens") if isinstance(method, dict) else None
        if isinstance(tokens, int) and tokens > (block if anchor else block - 1):
            raise fields.refuse(
                "sample_from_anchor",
                fields.get("sample_from_anchor"),
                f"contradicts speculative_tokens {tokens} with block_size {block}",
            )
    return anchor


def _draft_vocab_size(fields: Fields, vocab: int, checkpoint: Checkpoint) -> int:
    size = fields.integer("draft_vocab_size", DRAFT_VOCAB_SIZE)
    if fields.get("draft_vocab_size") is None:
        fields.warn("draft_vocab_size", f"is absent or null, taking {size}")
    if size > vocab:
        raise fields.refuse("draft_vocab_size", size, f"the vocabulary has {vocab} ids")
    if size < vocab and not checkpoint.may_have("lm_head.weight"):
        raise fields.refuse("draft_vocab_size", size, "a reduced vocabulary needs lm_head.weight")
    return size


def _attention(fields: Fields, layer: Fields, num_layers: int) -> tuple[LayerAttention, ...]:
    """The window starts before the block, for all of its rows alike."""
    kinds = layer_kinds(layer, num_layers)
    if "sliding_attention" not in kinds:
        return (LayerAttention(),) * num_layers
    sliding = LayerAttention(
        causal=not fields.boolean("sliding_window_non_causal", False),
        window=sliding_window(layer),
        window_moves=False,
    )
    return tuple(sliding if kind == "sliding_attention" else LayerAttention() for kind in kinds)
