"""Checkpoints that must have a certain hash: others are refused before they are served."""

import shutil
from pathlib import Path

import pytest

import draft_service.load
import verify_service.load
from draft_service.config import DraftServiceConfig
from serving.checkpoint import Checkpoint
from serving.errors import CheckpointError
from tests.recorded_models import DOMINO_SHIFT, TARGET
from verify_service.config import VerifyConfig

MODELS = {"target": TARGET, "draft": DOMINO_SHIFT}


def hash_of(folder: Path) -> str:
    return Checkpoint(folder).content_hash()


def load(service: str, **options: str) -> None:
    sizes = {"threads": 1, "page_size": 16, "kv_tokens": 512}
    if service == "verify":
        verify_service.load.load(VerifyConfig(**MODELS, **sizes, **options))  # type: ignore[arg-type]
    else:
        config = DraftServiceConfig(**MODELS, **sizes, **options)  # type: ignore[arg-type]
        draft_service.load.load(config)


@pytest.mark.parametrize("service", ["verify", "draft"])
def test_only_the_named_checkpoint_is_served(service: str) -> None:
    """Prevents weights that somebody replaced on the model volume from being served."""
    hashes = {f"{name}_sha256": hash_of(folder) for name, folder in MODELS.items()}
    load(service, **hashes)
    for name, folder in MODELS.items():
        wrong = hashes | {f"{name}_sha256": "0" * 64}
        with pytest.raises(CheckpointError) as caught:
            load(service, **wrong)
        for part in (str(folder), hashes[f"{name}_sha256"], f"--{name}-sha256 says 000"):
            assert part in str(caught.value)


def test_one_changed_byte_is_another_checkpoint(tmp_path: Path) -> None:
    """Prevents a hash over names and sizes alone."""
    folder = tmp_path / "draft"
    shutil.copytree(DOMINO_SHIFT, folder)
    before = hash_of(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert hash_of(folder) != before
