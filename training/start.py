"""Weights that a draft's training starts from, float32 on the CPU: new ones, or a checkpoint's."""

import math
from pathlib import Path

import torch
from torch import Tensor

from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_tensors import W2, draft_tensor_name, draft_tensors
from serving.tensor_names import layer_tensors
from training.config import TrainConfig
from training.errors import TrainingError
from training.target import BatchTarget

OUTPUTS = ("o_proj.weight", "down_proj.weight")  # they write to the residual stream


def first_weights(
    config: TrainConfig, draft: DraftConfig, target: BatchTarget
) -> dict[str, Tensor]:
    """What config.init and config.start ask for."""
    if config.init:
        return read_weights(config.init, draft)
    found = new_weights(draft, config.seed, target.final_norm)
    return found | (copied_layers(draft, target) if config.start == "target" else {})


def new_weights(config: DraftConfig, seed: int, final_norm: Tensor) -> dict[str, Tensor]:
    """Random matrices; the correction is zero at first.

    final_norm [hidden]: the target's, since the frozen head reads what is behind ours.
    """
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in draft_tensors(config).items():
        scale = 0.02 / math.sqrt(2 * config.num_layers) if name.endswith(OUTPUTS) else 0.02
        if name.startswith("prefix_gru."):
            width = shape[0] // 3
            weights[name] = (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(width)
        elif len(shape) == 1:
            weights[name] = torch.zeros(shape) if name.endswith(".bias") else torch.ones(shape)
        else:
            weights[name] = torch.randn(shape, generator=generator) * scale
    if config.domino:
        weights["embed_proj.2.weight"].zero_()
    if config.dspark:
        weights[W2].zero_()
    weights["norm.weight"] = 0.1 * final_norm.float().cpu()
    return weights


def copied_layers(config: DraftConfig, target: BatchTarget) -> dict[str, Tensor]:
    """The backbone's layers as copies of the target's, evenly spaced from its first to its last.

    Features are averaged at first. Raises TrainingError where shapes differ.
    """
    layers = [
        _copied(config, target, place)
        for place in spaced(config.num_layers, target.config.num_layers)
    ]
    found = {f"layers.{i}.{name}": w for i, layer in enumerate(layers) for name, w in layer.items()}
    taps = len(config.target_layer_ids)
    found["fc.weight"] = torch.eye(config.hidden_size).repeat(1, taps) / taps
    norms = [layer["input_layernorm.weight"] for layer in layers]
    return found | {"hidden_norm.weight": torch.stack(norms).mean(0)}


def _copied(config: DraftConfig, target: BatchTarget, place: int) -> dict[str, Tensor]:
    """A layer of the target; a head's norm that it lacks gets the length that its vectors have
    there for inputs of unit variance."""
    wanted, theirs = (layer_tensors("", sizes) for sizes in (config, target.config))
    found: dict[str, Tensor] = {}
    for name, shape in wanted.items():
        if name in theirs and theirs[name] != shape:
            remedy = f'{list(theirs[name])} in the target; use start = "new"'
            raise TrainingError(f"start: {name} is {list(shape)} in the draft, {remedy}")
        if name in theirs:
            stored = f"model.layers.{place}.{name}"
            found[name] = target.checkpoint.tensor(stored, shape, torch.float32)
    for kind in "qk":
        norm = f"self_attn.{kind}_norm.weight"
        if norm in wanted and norm not in theirs:
            made = found[f"self_attn.{kind}_proj.weight"] * found["input_layernorm.weight"]
            found[norm] = (made.square().sum() / len(made)).sqrt() * torch.ones(wanted[norm])
    return found


def spaced(count: int, layers: int) -> list[int]:
    """`count` of `layers`, the first and the last among them."""
    if count == 1:
        return [layers - 1]
    return [round(i * (layers - 1) / (count - 1)) for i in range(count)]


def read_weights(folder: Path, config: DraftConfig) -> dict[str, Tensor]:
    """Those of a checkpoint of exactly this config."""
    checkpoint = Checkpoint(folder, rename=draft_tensor_name)
    shapes = draft_tensors(config)
    return {name: checkpoint.tensor(name, shape, torch.float32) for name, shape in shapes.items()}
