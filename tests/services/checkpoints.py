"""Copies of the recorded draft with one thing wrong, or with other weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.recorded_models import DOMINO_SHIFT


def draft_copy(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    nested: dict[str, Any] | None = None,
    tensors: dict[str, Tensor | None] | None = None,
) -> Path:
    """`folder` with the draft, some fields and tensors replaced; a tensor None is left out."""
    fields = json.loads((DOMINO_SHIFT / "config.json").read_text()) | (config or {})
    fields["dflash_config"] |= nested or {}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    stored = load_file(DOMINO_SHIFT / "model.safetensors") | (tensors or {})
    save_file({n: t for n, t in stored.items() if t is not None}, folder / "model.safetensors")
    return folder


def other_weights(folder: Path, seed: int = 5) -> Path:
    """The recorded draft with every matrix another: same shape, useless proposals."""
    generator = torch.Generator().manual_seed(seed)
    stored = load_file(DOMINO_SHIFT / "model.safetensors")
    made: dict[str, Tensor | None] = {
        name: (torch.randn(t.shape, generator=generator) * 0.1).to(t.dtype)
        for name, t in stored.items()
        if t.dim() > 1
    }
    return draft_copy(folder, tensors=made)
