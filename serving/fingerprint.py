"""Identities of models, exchanged in handshakes so that services never pair by mistake."""

import hashlib
from pathlib import Path
from typing import Final, TypeVar

from domino_serve.v1 import verify_pb2
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.errors import Mismatch
from serving.target_config import TargetConfig

Fingerprint = TypeVar("Fingerprint", verify_pb2.TargetFingerprint, verify_pb2.DraftFingerprint)

SAME_MODELS: Final = "start both services with the same --target, --draft and --dtype"
# In these two copies of a model may differ: names are for messages, and the draft service needs
# no tokenizer beside the weights.
NOT_COMPARED: Final = ("name", "tokenizer_hash")


def target_fingerprint(
    checkpoint: Checkpoint, config: TargetConfig, dtype: str
) -> verify_pb2.TargetFingerprint:
    """Identity of a loaded target."""
    return verify_pb2.TargetFingerprint(
        name=checkpoint.name,
        content_hash=checkpoint.content_hash(),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        dtype=dtype,
        tokenizer_hash=tokenizer_hash(checkpoint.path),
    )


def tokenizer_hash(folder: Path) -> str:
    """sha256 of a folder's tokenizer.json; empty when it has none."""
    file = folder / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def draft_fingerprint(checkpoint: Checkpoint, config: DraftConfig) -> verify_pb2.DraftFingerprint:
    """Identity of a loaded draft."""
    return verify_pb2.DraftFingerprint(
        name=checkpoint.name,
        content_hash=checkpoint.content_hash(),
        block_size=config.block_size,
        target_layer_ids=config.target_layer_ids,
        mask_token_id=config.mask_token_id,
        shift_label=config.shift_label,
        has_domino_head=config.domino is not None,
        has_dspark_head=config.dspark is not None,
        max_context=config.max_context,
    )


def require_equal(role: str, expected: Fingerprint, actual: Fingerprint) -> None:
    """Raises Mismatch naming the first field that differs."""
    for field in expected.DESCRIPTOR.fields:
        mine, theirs = getattr(expected, field.name), getattr(actual, field.name)
        if field.name not in NOT_COMPARED and mine != theirs:
            raise Mismatch(f"{role}.{field.name}", mine, theirs, SAME_MODELS)
