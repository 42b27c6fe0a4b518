"""Any field with any value: it is read, or refused by its name; never a traceback, never a hang."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.checkpoint import Checkpoint
from serving.draft_format import load_draft_config
from serving.errors import CheckpointError
from serving.target_config import load_target_config
from tests.checkpoints.draft_folder import Config, Sizes, save
from tests.recorded_models import TARGET

GOLDEN = TARGET.parent
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**70, 0.5, -0.5, 1e400, math.nan),
    *("", "true", "7", [], [1], ["full_attention"], [None], {}, {"a": 1}, {"rope_type": None}),
]
# What is missed when the object that holds it is empty.
INSIDE = {"dflash_config": "mask_token_id", "rope_parameters": "rope_theta"}
DRAFTS = {
    "Qwen3-8B-Domino": (GOLDEN / "f8_configs/base/Qwen3-8B-Domino-b16.json", 36),
    "Qwen3.6-27B-DFlash": (GOLDEN / "f8_configs/base/Qwen3.6-27B-DFlash.json", 64),
    "speculators": (GOLDEN / "f7_speculators_dflash/config.json", 6),
}


def changed(config: Config) -> Iterator[tuple[str, Any, Config]]:
    """(field, value, config) for every field of a config, the nested ones included."""
    for name, old in config.items():
        for value in VALUES:
            yield name, value, config | {name: value}
        if isinstance(old, dict):
            for inner, value, nested in changed(old):
                yield inner, value, config | {name: nested}


def check(field: str, value: Any, read: Any) -> bool:
    """Whether the value was refused, and then by its field's name."""
    try:
        read()
    except CheckpointError as error:
        message = str(error).partition(": ")[2]
        named = field in message or INSIDE.get(field, field) in message
        assert named, f"{field} = {value!r}: {error}"
        return True
    return False


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts(tmp_path: Path, name: str) -> None:
    """Exporters write what they like; the reader's own mistakes must not look like the user's."""
    file, layers = DRAFTS[name]
    config = json.loads(file.read_text())
    network = config.get("transformer_layer_config", config)
    sizes = Sizes(layers, network["hidden_size"], network["vocab_size"])
    refused = [
        field
        for field, value, other in changed(config)
        if check(
            field,
            value,
            lambda other=other: load_draft_config(
                Checkpoint(save(tmp_path, other, None), weights=False), sizes
            ),
        )
    ]
    assert {"hidden_size", "block_size", "mask_token_id", "layer_types"} <= set(refused)


@pytest.mark.parametrize("legacy", [True, False])
def test_targets(tmp_path: Path, legacy: bool) -> None:
    """As for drafts, with the rotary embedding in either form."""
    config = json.loads((TARGET / "config.json").read_text())
    theta = config.pop("rope_theta", 1e4)
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    rope = {"rope_theta": theta, **scaling}
    config |= (
        {"rope_theta": theta, "rope_scaling": scaling} if legacy else {"rope_parameters": rope}
    )
    refused = [
        field
        for field, value, other in changed(config)
        if check(
            field,
            value,
            lambda other=other: load_target_config(
                Checkpoint(save(tmp_path, other, None), weights=False)
            ),
        )
    ]
    assert {"hidden_size", "rope_theta", "factor", "eos_token_id"} <= set(refused)


def test_a_target_given_as_draft_is_called_one() -> None:
    """Swapped flags are the commonest mistake; a missing mask id would be a riddle."""
    with pytest.raises(CheckpointError, match="this is no DFlash draft"):
        load_draft_config(Checkpoint(TARGET), Sizes(6, 64, 257))
