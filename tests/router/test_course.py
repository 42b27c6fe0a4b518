"""A request's way through verify groups that do what the test says."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from router.failover import Failover
from router.groups import Group
from router.metrics import FAILOVERS
from serving.errors import PeerUnavailable, ServingError
from tests.router.fake_services import FULL, chunk
from tests.router.work import work

Run = list[verify_pb2.VerifyServiceGenerateResponse | ServingError]


class OneGroup:
    """In place of VerifyGroups: one that answers each run with the next of `runs`."""

    def __init__(self, *runs: Run) -> None:
        self._runs = list(runs)
        self._group = Group(endpoint=None, channel=None, client=self)  # type: ignore[arg-type]

    def usable(self, refused: Collection[Group] = ()) -> list[Group]:
        return []

    @asynccontextmanager
    async def take(self, refused: Collection[Group] = ()) -> AsyncIterator[Group]:
        yield self._group

    @asynccontextmanager
    async def run(self, request: Any, timeout_s: float | None) -> AsyncIterator[Any]:
        yield self._events(self._runs.pop(0))

    async def _events(self, run: Run) -> AsyncIterator[verify_pb2.VerifyServiceGenerateResponse]:
        for event in run:
            if isinstance(event, ServingError):
                raise event
            yield event


def test_waiting_for_room_after_a_loss_is_one_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents an alert about verify services that are lost where one was and others are full."""
    monkeypatch.setattr("router.failover._RETRY_S", 0.0)
    lost = PeerUnavailable("verify", "the engine stopped")
    last = verify_pb2.VerifyComplete(finish_reason=spec.FINISH_REASON_LENGTH)
    end = verify_pb2.VerifyServiceGenerateResponse(complete=last)
    full: Run = [FULL]
    runs: list[Run] = [[chunk([1]), lost], full, full, full, [chunk([2]), end]]
    got: list[verify_pb2.VerifyServiceGenerateResponse] = []

    async def deliver(event: verify_pb2.VerifyServiceGenerateResponse) -> bool:
        got.append(event)
        return True

    groups: Any = OneGroup(*runs)
    before = FAILOVERS.read()[()]
    asyncio.run(Failover(groups, None, 1e6).begin(lambda: None).follow(work(), deliver))
    assert [id_ for event in got for id_ in event.chunk.token_ids] == [1, 2]
    assert got[-1].complete.usage.completion_tokens == 2
    assert FAILOVERS.read()[()] == before + 1
