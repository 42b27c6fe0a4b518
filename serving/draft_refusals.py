"""Drafts that cannot be served, recognised by a field or a tensor and refused with the reason."""

from collections.abc import Collection
from typing import Any

from serving.fields import Fields

NOTHING: tuple[Any, ...] = (None, False, {}, [])
DFLASH_2 = "DFlash-2 (convolutions, candidate selector) cannot be served; use a DFlash draft"
TORCHSPEC = (
    "TorchSpec's own Domino layout (GRU with bias, correction on every position) has no equal in "
    "the served one; train or export with SpecForge's layout (prefix_gru, embed_proj)"
)
DSPARK = (
    "DSpark drafts (Markov head, confidence head) are read from the DeepSpec format only: a flat "
    "config with markov_rank"
)
QUANTISED = "quantised drafts cannot be served; use the unquantised checkpoint"
VARIANT = "this variant of the network cannot be served; use a DFlash or Domino draft"
ANCHOR_FIRST = (
    "anchor-first DFlash (row 0 proposes the first token) is read from the speculators format "
    "only; convert the draft, or remove the field if its rows propose their own positions"
)
DOMINO_NAME = (
    'Domino is a head and not an algorithm: write DFLASH here and "domino" as '
    "dflash_config.projector_type"
)
SPECULATORS_DOMINO = (
    "no released speculators format has a Domino head; export the draft in the authors' format"
)

REFUSED: dict[str, str] = {
    "conv_kernel_size": DFLASH_2,
    "conv_group_size": DFLASH_2,
    "selector_rank": DFLASH_2,
    "selector_top_k": DFLASH_2,
    "gru_hidden_size": TORCHSPEC,
    "correction_rank": TORCHSPEC,
    "domino_gru_hidden_size": TORCHSPEC,
    "domino_correction_rank": TORCHSPEC,
    "markov_rank": DSPARK,
    "markov_head_type": DSPARK,
    "enable_confidence_head": DSPARK,
    "confidence_head_with_markov": DSPARK,
    "dspark_block_size": DSPARK,
    "quantization_config": QUANTISED,
    "compression_config": QUANTISED,
}
DSPARK_FIELDS = tuple(
    name for name, why in REFUSED.items() if why is DSPARK and name != "dspark_block_size"
)
VARIANTS = ("final_logit_softcapping", "attention_sink_bias", "attention_value_scale")
ANCHOR_FIELDS = ("sample_from_anchor", "query_zero_predicts_next")
ALGORITHM_FIELDS = ("algorithm", "speculative_algorithm")

UNKNOWN_TENSORS: dict[str, str] = {
    "causal_gru.": TORCHSPEC,
    "correction_w": TORCHSPEC,
    "markov_head.": DSPARK,
    "confidence_head.": DSPARK,
    "selector": DFLASH_2,
    "conv": DFLASH_2,
    "domino_head.": SPECULATORS_DOMINO,
    "qkv_proj": "Laguna's fused layout cannot be served; use a DFlash draft",
    "g_proj": "Laguna's attention gate cannot be served; use a DFlash draft",
    "draft_model.": "a trainer's wrapper; export the draft without the prefix draft_model.",
    "embed_tokens.": "a draft of the authors' format uses the target's; remove it from the file",
    "lm_head.": "a draft of the authors' format uses the target's; remove it from the file",
    "d2t": "a reduced vocabulary is read from the speculators format only",
    "mask_hidden": "a trained mask embedding cannot be served",
}


def refuse_unsupported(fields: Fields, allowed: Collection[str] = ()) -> None:
    """Raises CheckpointError naming the field of a variant that cannot be served."""
    for name, reason in REFUSED.items():
        if name not in allowed:
            fields.refuse_any([name], reason)
    fields.refuse_any(VARIANTS, VARIANT, NOTHING)
    fields.refuse_any(["output_multiplier"], VARIANT, (1,))
    refuse_algorithm(fields)


def refuse_algorithm(fields: Fields) -> None:
    """Raises CheckpointError for any algorithm but DFlash; Domino is a head of it."""
    for name in ALGORITHM_FIELDS:
        value = fields.get(name)
        if value is not None and str(value).lower() != "dflash":
            domino = str(value).lower() == "domino"
            raise fields.refuse(name, value, DOMINO_NAME if domino else "only DFLASH can be served")


def refuse_other_anchor(fields: Fields, shift_label: bool, domino: bool) -> None:
    """Raises CheckpointError where an anchor-first field contradicts what would be served."""
    for name in ANCHOR_FIELDS:
        value = fields.get(name)
        if value is None or (value is shift_label):
            continue
        reason = f"contradicts shift_label {shift_label}; make them agree"
        raise fields.refuse(name, value, reason if domino else ANCHOR_FIRST)


def unknown_tensor(name: str) -> str | None:
    """What an unknown tensor belongs to, where that can be told."""
    return next((why for part, why in UNKNOWN_TENSORS.items() if part in name), None)
