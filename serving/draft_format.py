"""A draft's folder in, its tensors and config out, whichever of the three formats it has."""

from collections.abc import Sequence
from pathlib import Path

from serving.checkpoint import Checkpoint
from serving.draft_authors import read_authors
from serving.draft_config import DraftConfig, TargetSizes
from serving.draft_deepspec import is_deepspec, read_deepspec
from serving.draft_speculators import LAYERS, MODEL_TYPE, read_speculators
from serving.draft_tensors import check_draft_tensors, draft_tensor_name
from serving.errors import CheckpointError

MASK_EMBEDDING = "mask_embedding.pt"
# No target has any of these.
DRAFT_FIELDS = (
    *("dflash_config", "projector_type", "target_layer_ids", "mask_token_id", "block_size"),
    *(MODEL_TYPE, LAYERS),
)


def open_draft(
    path: Path,
    target: TargetSizes | None,
    *,
    tokenizer: Path | None = None,
    weights: bool = True,
) -> tuple[Checkpoint, DraftConfig]:
    """A draft whose config and tensors fit the target; CheckpointError names what does not.

    target=None checks the draft by itself. tokenizer: the target's folder, to look up the mask
    token. weights=False takes a config without weights as well.
    """
    checkpoint = Checkpoint(path, rename=draft_tensor_name, weights=weights)
    if (path / MASK_EMBEDDING).exists():
        raise CheckpointError(f"{path}: {MASK_EMBEDDING}: trained mask embeddings cannot be served")
    config = load_draft_config(checkpoint, target, [path, *([tokenizer] if tokenizer else [])])
    if checkpoint.tensors:
        check_draft_tensors(checkpoint, config)
    return checkpoint, config


def load_draft_config(
    checkpoint: Checkpoint, target: TargetSizes | None, tokenizers: Sequence[Path] = ()
) -> DraftConfig:
    """Reads and checks the config of any format; CheckpointError where it has none."""
    if not is_draft(checkpoint):
        raise CheckpointError(
            f"{checkpoint.config_file}: this is no DFlash draft: {', '.join(DRAFT_FIELDS)} are all "
            "absent; a target is given as --target"
        )
    if is_deepspec(checkpoint):
        return read_deepspec(checkpoint, target, tokenizers)
    speculators = any(checkpoint.config.get(name) is not None for name in (MODEL_TYPE, LAYERS))
    return (read_speculators if speculators else read_authors)(checkpoint, target, tokenizers)


def is_draft(checkpoint: Checkpoint) -> bool:
    """Whether a config is a draft's, by its fields."""
    return any(field in checkpoint.config for field in DRAFT_FIELDS)
