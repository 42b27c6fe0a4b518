"""Verify groups as discovery tells of them, one after another."""

import asyncio
import threading

import grpc
import pytest

from router.endpoint import Endpoint
from router.groups import VerifyGroups
from tests.router.endpoint_sets import Told
from tests.router.fake_services import FakeVerify, served


class Closing:
    """A channel that tells when it is closed."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel, self.closed = channel, asyncio.Event()

    async def close(self) -> None:
        await self._channel.close()
        self.closed.set()


def test_a_replica_that_is_gone_keeps_no_connection() -> None:
    """Prevents a router that goes on pinging every pod there ever was."""

    async def run(address: str) -> None:
        source = Told()
        async with VerifyGroups(source) as groups:
            source.sets.put_nowait((Endpoint(address=address),))
            await groups.target(30)
            (group,) = groups.usable()
            channel = Closing(group.channel)
            group.channel = channel  # type: ignore[assignment]
            async with groups.take():
                source.sets.put_nowait(())
                while groups.usable():
                    await asyncio.sleep(0)
                assert not channel.closed.is_set(), "a request still runs there"
            assert channel.closed.is_set()
            source.sets.put_nowait((Endpoint(address=address),))
            while not groups.usable():
                await asyncio.sleep(0)
            (group,) = groups.usable()
            channel = Closing(group.channel)
            group.channel = channel  # type: ignore[assignment]
            source.sets.put_nowait(())
            await asyncio.wait_for(channel.closed.wait(), 30)

    with served(FakeVerify(has_draft=False)) as address:
        asyncio.run(run(address))


def test_drafts_are_met_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a verify service that has come back from waiting for one draft after another that is
    away, while streams wait for it."""
    monkeypatch.setattr("router.groups._PROGRESS_S", 60.0)
    verify, drafts = FakeVerify(), ("one:1", "another:1")
    verify.meeting = threading.Barrier(len(drafts), timeout=30)

    async def run(address: str) -> None:
        source = Told()
        async with VerifyGroups(source, lambda: drafts) as groups:
            source.sets.put_nowait((Endpoint(address=address),))
            await groups.target(60)

    with served(verify) as address:
        asyncio.run(run(address))
    assert verify.meeting is None
