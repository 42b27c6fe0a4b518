"""Changes to a target's folder, and what the loader then makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from serving.errors import CheckpointError
from serving.target_config import TargetConfig, open_target

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def change(folder: Path, name: str = "config.json", /, **fields: Any) -> None:
    file = folder / name
    config = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(config | fields))


def change_tensors(folder: Path, **tensors: Tensor | None) -> None:
    """Adds or replaces tensors; None removes one."""
    found = load_file(folder / WEIGHTS) | {n: t for n, t in tensors.items() if t is not None}
    kept = {n: t for n, t in found.items() if n not in tensors or tensors[n] is not None}
    save_file(kept, folder / WEIGHTS)


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        open_target(folder)
    assert str(folder) in str(error.value), "the file is named"
    return str(error.value).removeprefix(str(folder))


def config_of(folder: Path) -> TargetConfig:
    return open_target(folder)[1]
