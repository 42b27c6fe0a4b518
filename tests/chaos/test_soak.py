"""The short form of the soak, and of the storm that is for GPUs, on a CPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.cluster import Cluster, cluster
from tests.chaos.device_storm import storm_of_kills
from tests.chaos.soak import soak
from tests.chaos.traffic import Case
from tests.recorded_models import DOMINO_SHIFT
from tests.services.checkpoints import other_weights

SEED = 7
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def services(tokenizer: Path) -> Iterator[Cluster]:
    with cluster(tokenizer, drafts=2, measured=True, max_sequences=8, max_waiting=16) as running:
        yield running


def test_killed_services_leave_nothing_behind(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents survivors that keep memory, handles or sessions of every peer that dies."""
    found = storm_of_kills(services, cases, 8, SEED)
    assert (found["wrong"], found["failed"], found["leaks"]) == (0, 0, {})
    assert sum(found["blows"].values()) > 0 < found["requests"]
    assert found["planes"] == ["shm"]
    for more in found["more"].values():
        assert more["segments"] == 0 >= more["files"] - 8


def test_a_while_of_everything(services: Cluster, cases: Sequence[Case], tmp_path: Path) -> None:
    """Prevents what no single kind of failure shows: one behind another, or two at once."""
    found = soak(services, cases, 15, SEED, (other_weights(tmp_path / "other"), DOMINO_SHIFT))
    assert (found["wrong"], found["failed"], found["leaks"]) == (0, 0, {})
    assert found["events"]
