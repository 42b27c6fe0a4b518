"""The DeepSpec format: a flat Qwen3 config with a Markov and a confidence head (DSpark).

Row 0 of a block, the current token's, proposes the first token. Without a Markov head
(markov_rank 0) it is a DFlash draft of that layout.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast, get_args

from serving.checkpoint import Checkpoint
from serving.decoder_config import Defaults, read_decoder
from serving.draft_config import DraftConfig, DSparkHead, LayerAttention, TargetSizes
from serving.draft_fields import (
    block_size,
    check_sizes,
    layer_kinds,
    mask_token_id,
    tapped_layers,
)
from serving.draft_refusals import DSPARK_FIELDS, refuse_unsupported
from serving.fields import Fields

Kind = Literal["vanilla", "gated", "rnn"]
OTHER_FORMATS = ("dflash_config", "speculators_model_type", "transformer_layer_config")
BLOCK_SIZE, RANK, MAX_POSITIONS = 7, 256, 32768


def is_deepspec(checkpoint: Checkpoint) -> bool:
    """Whether the config is of this format: flat, with the width of the Markov head."""
    config = checkpoint.config
    return config.get("markov_rank") is not None and not any(map(config.get, OTHER_FORMATS))


def read_deepspec(
    checkpoint: Checkpoint, target: TargetSizes | None, tokenizers: Sequence[Path]
) -> DraftConfig:
    """Reads and checks the config against its target; raises CheckpointError naming the field."""
    fields = Fields(checkpoint.config_file, checkpoint.config)
    refuse_unsupported(fields, allowed=DSPARK_FIELDS)
    vocab = target.vocab_size if target else None
    sizes = read_decoder(fields, Defaults(max_positions=MAX_POSITIONS, vocab_size=vocab))
    check_sizes(fields, sizes, target)
    if "sliding_attention" in layer_kinds(fields, sizes["num_layers"]):
        raise fields.refuse("layer_types", "sliding_attention", "only full_attention can be served")
    layers = target.num_layers if target else None
    bias = fields.boolean("attention_bias", False)
    return DraftConfig(
        **sizes,
        attention_bias=bias,
        output_bias=bias and checkpoint.may_have("layers.0.self_attn.o_proj.bias"),
        mlp_bias=False,
        qk_norm=True,
        format="deepspec",
        block_size=block_size(fields, BLOCK_SIZE),
        target_layer_ids=tapped_layers(
            fields, "target_layer_ids", fields.get("target_layer_ids"), layers, first=0
        ),
        mask_token_id=mask_token_id(fields, sizes["vocab_size"], tokenizers),
        attention=(LayerAttention(),) * sizes["num_layers"],
        shift_label=True,
        domino=None,
        dspark=_head(fields),
        draft_vocab_size=sizes["vocab_size"],
        warnings=tuple(fields.warnings),
    )


def _head(fields: Fields) -> DSparkHead | None:
    rank = fields.integer("markov_rank", RANK, minimum=0)
    confident = fields.boolean("enable_confidence_head", False)
    if rank == 0:
        if confident:
            raise fields.refuse("enable_confidence_head", True, "needs a Markov head")
        return None
    kind = cast(Kind, fields.choice("markov_head_type", get_args(Kind), "vanilla"))
    with_markov = confident and fields.boolean("confidence_head_with_markov", True)
    return DSparkHead(kind=kind, rank=rank, confidence=confident, reads_markov=with_markov)
