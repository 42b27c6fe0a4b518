"""The short form of `make chaos`: real processes that die, are left, flooded and updated."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cancels import storm
from tests.chaos.cluster import Cluster, cluster
from tests.chaos.kills import Kills, kill_drafts, kill_router, kill_verifies
from tests.chaos.overload import flood
from tests.chaos.rolling import update_all
from tests.chaos.traffic import Case

SEED = 7
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def services(tokenizer: Path) -> Iterator[Cluster]:
    room: Any = {"max_sequences": 8, "max_waiting": 16}
    with cluster(tokenizer, routers=2, notice_s=6.0, **room) as running:
        yield running


def test_a_draft_killed_costs_speed_only(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents streams that end, stall or change when their draft dies."""
    kill_in_use(kill_drafts, services, cases)


def test_a_verify_group_killed_loses_no_token(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents streams that end, or tokens that come twice or never, when a group dies."""
    kill_in_use(kill_verifies, services, cases)


def kill_in_use(
    kill: Callable[[Cluster, Sequence[Case], int, int], Kills],
    services: Cluster,
    cases: Sequence[Case],
) -> None:
    """Again where it died when nobody needed it: whose streams run then is chance."""
    for seed in range(SEED, SEED + 5):
        kills = kill(services, cases, 16, seed)
        assert (kills.identical, kills.errors) == (16, ())
        assert services.leaks() == {}
        if kills.hit:
            return
    raise AssertionError("it always died when nobody needed it")


def test_clients_that_leave_take_nothing_along(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents a service that is full after a day of impatient clients."""
    found = storm(services, cases, 60, SEED)
    assert (found["leaks"], found["neighbours_wrong"]) == ({}, 0)
    assert len(found["phases"]) >= 3, "they left in few phases only"
    assert max(found["more_files"].values()) <= 4
    assert set(found["more_segments"].values()) == {0}
    assert max(found["more_threads"].values()) <= 24, "more than the pools of handlers may have"


def test_overload_is_refused_with_a_time(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents queues without a bound, and refusals that do not say when to come back."""
    found = flood(services, cases, 64)
    assert found["refused_otherwise"] == []
    assert found["identical"] == 64 - found["refused"] >= 8
    assert found["leaks"] == {}


def test_an_update_of_every_kind_fails_no_request(services: Cluster, cases: Sequence[Case]) -> None:
    """Prevents errors for clients each time the services are updated."""
    found = update_all(services, cases, SEED, clients=2, of_each=1)
    assert (found["failed"], found["wrong"], found["errors"]) == (0, 0, [])
    assert found["leaks"] == {}


def test_a_router_killed_frees_what_its_clients_held(
    services: Cluster, cases: Sequence[Case]
) -> None:
    """Prevents requests that run for a router that is gone, and retries that differ."""
    for _ in range(5):
        found = kill_router(services, cases)
        assert found["cut_with_unavailable"] == found["retried_identical"]
        assert (found["wrong"], found["leaks"]) == (0, {})
        if found["retried_identical"]:
            return
    raise AssertionError("it always died when all answers were there")
