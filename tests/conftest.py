"""What many tests share: the embedded models, fetched on the first run from nothing, services that
start fast, and a CUDA driver made of this process' own memory."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from tests.warm_start import warm_starts


@pytest.fixture(scope="session")
def embedded_target() -> Path:
    """Checkpoint folder of SmolLM2-135M-Instruct; pulled into the user cache if need be."""
    return resolve_model(DEFAULT_TARGET)


@pytest.fixture(scope="session")
def embedded_draft() -> Path:
    """Checkpoint folder of the Domino draft committed under models/."""
    return resolve_model(DEFAULT_DRAFT)


@pytest.fixture(scope="session", autouse=True)
def warm_services() -> Iterator[None]:
    """A start of a service takes two seconds of a core less; the suite has about 150."""
    with warm_starts():
        yield


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Compiled once; needs tests.transport.fake_driver.COMPILER."""
    from tests.transport.fake_driver import compiled

    return compiled(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def driver(
    fake_cuda: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """In libcuda's place, and shared memory in a folder of the test's own."""
    from serving.transport import segment
    from tests.transport.fake_driver import in_place

    monkeypatch.setattr(segment, "FOLDER", tmp_path)
    with in_place(fake_cuda):
        yield fake_cuda
