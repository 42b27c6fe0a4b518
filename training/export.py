"""A draft in training in, a checkpoint in the DFlash authors' format out, and back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from serving.checkpoint import CONFIG_FILE, Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_format import load_draft_config, open_draft
from serving.target_config import TargetConfig
from training.config import TrainConfig
from training.errors import TrainingError

WEIGHTS_FILE = "model.safetensors"


def draft_json(
    config: TrainConfig, target: TargetConfig, rope: Mapping[str, Any]
) -> dict[str, Any]:
    """config.json of a new draft; `rope`: the target's own rotary fields, copied."""
    if config.mask_token_id >= target.vocab_size:
        remedy = f"the target has ids 0 to {target.vocab_size - 1}"
        raise TrainingError(f"mask_token_id: {config.mask_token_id}: {remedy}")
    head = {
        "projector_type": "domino",
        "gru_hidden_dim": config.gru_hidden_dim,
        "emb_dim": config.emb_dim,
        "pure_draft_prefix_len": 1,
        "shift_label": config.shift_label,
    }
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": config.intermediate_size or target.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": target.max_context,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "block_size": config.block_size,
        "num_target_layers": target.num_layers,
        **rope,
        "dflash_config": {
            "target_layer_ids": tapped_layers(config.taps, target.num_layers),
            "mask_token_id": config.mask_token_id,
            **(head if config.head == "domino" else {}),
        },
    }


def tapped_layers(taps: int, layers: int) -> list[int]:
    """The authors' choice: evenly spaced outputs from layer 1 to layers - 3."""
    if taps == 1:
        return [layers // 2]
    if layers < taps + 3:
        raise TrainingError(f"taps: {taps}: the target has only {layers} layers; tap fewer")
    return [round(1 + i * (layers - 4) / (taps - 1)) for i in range(taps)]


def rope_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The rotary fields of a target's config as they stand."""
    names = ("rope_theta", "rope_scaling", "rope_parameters")
    return {n: checkpoint.config[n] for n in names if checkpoint.config.get(n) is not None}


def parse_draft(folder: Path, config: Mapping[str, Any], target: TargetConfig) -> DraftConfig:
    """The config as the services read it; written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n")
    return load_draft_config(Checkpoint(folder, weights=False), target)


def export(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], target: TargetConfig
) -> DraftConfig:
    """Writes the checkpoint in bfloat16 and reads it back as the services do."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {n: w.detach().to("cpu", torch.bfloat16).contiguous() for n, w in weights.items()}
    save_file(stored, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n")
    return open_draft(folder, target)[1]
