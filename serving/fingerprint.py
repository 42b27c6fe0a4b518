"""Identities of models, exchanged in handshakes so that services never pair by mistake."""

from typing import TypeVar

from domino_serve.v1 import verify_pb2
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.errors import Mismatch
from serving.target_config import TargetConfig

Fingerprint = TypeVar("Fingerprint", verify_pb2.TargetFingerprint, verify_pb2.DraftFingerprint)

NAME_FIELD = "name"  # for messages; two copies of a model may differ in it


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
    )


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
        max_context=config.max_context,
    )


def require_equal(role: str, expected: Fingerprint, actual: Fingerprint) -> None:
    """Raises Mismatch naming the first field that differs."""
    for field in expected.DESCRIPTOR.fields:
        mine, theirs = getattr(expected, field.name), getattr(actual, field.name)
        if field.name != NAME_FIELD and mine != theirs:
            raise Mismatch(f"{role}.{field.name}", mine, theirs)
