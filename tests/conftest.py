"""What many tests share: the embedded models, fetched on the first run from nothing, services that
start fast, a CUDA driver made of this process' own memory, the same random numbers in each run."""

import ctypes
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from serving import unused_port
from tests.patience import NEVER_S
from tests.warm_start import warm_starts

WORKERS = 16  # at most at once

# The same examples in each run, and no clock decides about them.
settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Whoever draws without a seed draws the same in each run."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def embedded_target() -> Path:
    """Checkpoint folder of SmolLM2-135M-Instruct; pulled into the user cache if need be."""
    return resolve_model(DEFAULT_TARGET)


@pytest.fixture(scope="session")
def embedded_draft() -> Path:
    """Checkpoint folder of the Domino draft committed under models/."""
    return resolve_model(DEFAULT_DRAFT)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent by pairs of ranks is waited for, however slow a machine is."""
    for limit in ("JOIN_S", "MOVE_S"):
        monkeypatch.setattr(f"serving.transport.nccl.{limit}", NEVER_S)


@pytest.fixture(scope="session", autouse=True)
def own_ports() -> Iterator[None]:
    """Each worker has a part of the ports: between choosing one and listening on it is a start."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    size = (unused_port._LAST + 1 - unused_port._FIRST) // WORKERS
    first = unused_port._FIRST + worker * size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unused_port, "_FIRST", first)
        patch.setattr(unused_port, "_LAST", first + size - 1)
        yield


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
