"""What many tests share: the embedded models, fetched on the first run from nothing."""

from pathlib import Path

import pytest

from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model


@pytest.fixture(scope="session")
def embedded_target() -> Path:
    """Checkpoint folder of SmolLM2-135M-Instruct; pulled into the user cache if need be."""
    return resolve_model(DEFAULT_TARGET)


@pytest.fixture(scope="session")
def embedded_draft() -> Path:
    """Checkpoint folder of the Domino draft committed under models/."""
    return resolve_model(DEFAULT_DRAFT)
