"""Seats on several drafts: what one of them does is not held against another."""

import asyncio
from typing import Any

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from router.admission import Work
from router.discovery import StaticAddresses
from router.endpoint import Endpoint
from router.seats import DraftSeats
from serving.errors import BadRequest, ServingError
from tests.router.endpoint_sets import Told
from tests.router.fake_services import FULL, FakeDraft, served
from tests.router.work import work

WORK = work(mode=spec.MODE_DOMINO, draft_tokens=7)


HERE = "here"


async def held(seats: DraftSeats) -> verify_pb2.DraftSeat:
    async with seats.hold(WORK, Endpoint(address="verify:1", node=HERE)) as seat:
        assert seat is not None
        return seat


def test_time_that_one_draft_used_up_is_not_held_against_the_others() -> None:
    """Prevents one draft that hangs from being all drafts' end: every request would run plain."""

    async def run(addresses: tuple[str, ...]) -> None:
        async with DraftSeats(StaticAddresses(addresses), timeout_s=0) as seats:
            while not seats.addresses():
                await asyncio.sleep(0)
            assert (await held(seats)).ticket == ""
            seats._timeout_s = 30
            assert (await held(seats)).ticket == "ticket"

    with served(FakeDraft()) as address:
        asyncio.run(run((address,)))


def test_a_request_that_outlives_the_seats_gives_nothing_back() -> None:
    """A router told to end at once wrote, for each call it cut off, that a channel is closed, with
    a trace."""

    async def run(addresses: tuple[str, ...]) -> None:
        async with DraftSeats(StaticAddresses(addresses), timeout_s=30) as seats:
            while not seats.addresses():
                await asyncio.sleep(0)
            holding = seats.hold(WORK, Endpoint(address="verify:1", node=HERE))
            assert await holding.__aenter__()
        await holding.__aexit__(None, None, None)
        await asyncio.gather(*seats._releases)

    with served(FakeDraft()) as address:
        asyncio.run(run((address,)))


@pytest.mark.parametrize("refusal", [FULL, BadRequest("max_positions", "too many")], ids=str)
def test_a_draft_that_refuses_one_request_is_asked_for_the_next(refusal: ServingError) -> None:
    """Prevents a request that no draft can take from keeping others from all of them."""
    draft = FakeDraft()
    draft.refusal = refusal

    async def run(addresses: tuple[str, ...]) -> None:
        async with DraftSeats(StaticAddresses(addresses), timeout_s=30) as seats:
            while not seats.addresses():
                await asyncio.sleep(0)
            assert (await held(seats)).ticket == ""
            draft.refusal = None
            assert (await held(seats)).ticket == "ticket"

    with served(draft) as address:
        asyncio.run(run((address,)))


def test_a_request_without_a_seat_waits_at_a_draft_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prevents a request from looking for ever for a seat at a draft that is gone."""
    monkeypatch.setattr("router.seats._AWAY_S", 1e6)

    async def run(there: str) -> None:
        async with DraftSeats(StaticAddresses(("127.0.0.1:1", there)), timeout_s=30) as seats:
            while not seats.addresses():
                await asyncio.sleep(0)
            seat = await held(seats)
            assert (seat.address, seat.ticket) == (there, "")

    draft = FakeDraft()
    draft.refusal = FULL
    with served(draft) as address:
        asyncio.run(run(address))


def test_a_draft_that_goes_while_another_is_asked_costs_speed_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prevents a request that fails because a replica is taken away at the wrong moment."""

    async def run(near: Endpoint, far: Endpoint) -> None:
        source = Told()
        async with DraftSeats(source, timeout_s=30) as seats:
            source.sets.put_nowait((near, far))
            while not seats.addresses():
                await asyncio.sleep(0)
            reserve = seats._reserve

            async def reserve_slowly(draft: Any, work: Work, left_s: float) -> str:
                source.sets.put_nowait((near,))
                while len(seats.addresses()) > 1:
                    await asyncio.sleep(0)
                return await reserve(draft, work, left_s)

            monkeypatch.setattr(seats, "_reserve", reserve_slowly)
            seat = await held(seats)
            assert (seat.address, seat.ticket) == (near.address, "")

    full = FakeDraft()
    full.refusal = FULL
    with served(full) as near, served(FakeDraft()) as far:
        asyncio.run(run(Endpoint(address=near, node=HERE), Endpoint(address=far)))
