"""A draft in training in, a checkpoint that services read out, and back."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from serving.checkpoint import CONFIG_FILE, Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_format import load_draft_config, open_draft
from serving.target_config import TargetConfig
from training.draft_json import speculators_json
from training.errors import TrainingError
from training.target import BatchTarget

WEIGHTS_FILE = "model.safetensors"


def parse_draft(
    folder: Path | None, config: Mapping[str, Any], target: TargetConfig
) -> DraftConfig:
    """The config as the services read it; written to `folder`, if one is given."""
    if folder is None:
        with TemporaryDirectory() as temporary:
            return parse_draft(Path(temporary), config, target)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n")
    return load_draft_config(Checkpoint(folder, weights=False), target)


def export(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], target: TargetConfig
) -> DraftConfig:
    """Writes the checkpoint in bfloat16 and reads it back as the services do.

    A service that has the folder's files open goes on with the old ones. Raises TrainingError when
    the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {n: w.detach().to("cpu", torch.bfloat16).contiguous() for n, w in weights.items()}
    partial = folder / f".{WEIGHTS_FILE}.partial"
    try:
        save_file(stored, partial, metadata={"format": "pt"})
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        remedy = "free space, then the same command goes on"
        raise TrainingError(f"{folder} could not be written: {error}; {remedy}") from error
    partial.replace(folder / WEIGHTS_FILE)
    return open_draft(folder, target)[1]


def export_speculators(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], target: BatchTarget
) -> DraftConfig:
    """The same in the speculators format, with the target's tables as that one has them.

    Raises TrainingError for a draft with a head, which the format does not know.
    """
    if config.get("dflash_config", {"projector_type": "DSpark"}).get("projector_type"):
        raise TrainingError(
            "format: the speculators format has no Domino or DSpark head; export head = "
            '"dflash", or take the format of the head\'s authors'
        )
    tables = {"embed_tokens.weight": target.embedding, "lm_head.weight": target.lm_head.clone()}
    made = speculators_json(config, target.checkpoint.name)
    return export(folder, made, {**weights, **tables}, target.config)
