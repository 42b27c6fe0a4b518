"""Services that stand still and are not dead: streams go on without them, they are used again."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import Cluster, Member, cluster
from tests.chaos.kills import freeze, freeze_rank
from tests.chaos.traffic import Case

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def ranks(tokenizer: Path) -> Iterator[Cluster]:
    with cluster(tokenizer, ranks=2, max_sequences=8, step_timeout_s=10.0) as running:
        yield running


@pytest.fixture(scope="module")
def services(tokenizer: Path) -> Iterator[Cluster]:
    with cluster(tokenizer, ping_s=2.0, max_sequences=8, max_waiting=16) as running:
        yield running


def frozen(services: Cluster, victim: Member, cases: Sequence[Case], sign: str) -> dict[str, Any]:
    """Again where `sign` says that nobody needed it: whose streams run when it stops is chance."""
    for seed in range(7, 12):
        found = freeze(services, victim, cases, seed)
        assert (found["identical"], found["errors"]) == (found["streams"], ())
        assert found["leaks"] == {}
        if found[sign]:
            return found
    raise AssertionError("it always froze when nobody needed it")


def test_a_verify_group(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents streams that wait for a swapped-out or unreachable machine for ever, and what its
    requests held from being kept once it goes on. Two pings take 4 s here; without a limit of our
    own gRPC waits a minute for the second one's answer."""
    found = frozen(services, services.verifies[0], cases, "stood_still")
    assert found["longest_gap_s"] < 30


def test_the_only_draft(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents streams that wait for a draft, and one that came back from being left alone."""
    frozen(services, services.drafts[0], cases, "hit")


def test_a_rank(ranks: Cluster, cases: Sequence[Case]) -> None:
    """Prevents a group that answers pings while all its ranks wait for one, and a rank that stays
    behind with its memory once it goes on."""
    found = freeze_rank(ranks, cases, 7)
    assert (found["identical"], found["errors"]) == (found["streams"], ())
    assert found["hit"] > 0, "it froze when nobody needed it"
    assert (found["exit_code_of_the_group"], found["exit_code_of_the_rank"]) == (70, 1)
