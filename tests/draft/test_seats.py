"""Seats: a ticket buys one session, for a while; pages and sessions are never lost."""

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from draft_service.metrics import IDLE_CHECKS
from draft_service.seats import Seats
from serving.errors import BadRequest, Overloaded

PAGES, PAGE_SIZE, SESSIONS, TTL_S = 8, 16, 3, 10.0


class Clock:
    """Seconds that pass when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seats(clock: Clock) -> Seats:
    return Seats(pages=PAGES, page_size=PAGE_SIZE, max_sessions=SESSIONS, ttl_s=TTL_S, clock=clock)


def reserve(seats: Seats, positions: int = 1) -> str:
    return seats.reserve(spec.MODE_DOMINO, positions)


def test_a_ticket_opens_one_session(seats: Seats) -> None:
    """Two sequences that share pages would draft from each other's context."""
    ticket = reserve(seats, 17)
    session = seats.open(ticket)
    assert session is not None
    assert (session.mode, session.max_positions, len(session.pages)) == (spec.MODE_DOMINO, 17, 2)
    assert seats.open(ticket) is None
    assert seats.open("never sold") is None
    assert seats.num_open == 1


def test_a_ticket_lives_as_long_as_it_says(seats: Seats, clock: Clock) -> None:
    """Routers that die between the reservation and the request must not use up the draft."""
    early, late = reserve(seats, 16 * PAGES // 2), reserve(seats, 16 * PAGES // 2)
    clock.now += TTL_S
    assert seats.open(early) is not None
    clock.now += 0.001
    assert seats.open(late) is None
    assert seats.allocator.num_free == PAGES // 2
    reserve(seats, 16 * PAGES // 2)


def test_what_never_fits_is_refused_for_good(seats: Seats) -> None:
    """Prevents a caller from waiting for room that there never will be."""
    with pytest.raises(BadRequest, match="129 positions need 9 KV pages, the draft has 8"):
        reserve(seats, PAGES * PAGE_SIZE + 1)
    reserve(seats, PAGES * PAGE_SIZE)
    with pytest.raises(Overloaded, match="0 of 8 pages free, 1 asked"):
        reserve(seats)


def test_a_lost_page_is_told_when_the_last_seat_is_given_back(seats: Seats) -> None:
    """A draft that loses pages would be full one day, with nobody on it."""
    checks = IDLE_CHECKS.read()[()]
    first, second = (seats.open(reserve(seats)) for _ in range(2))
    assert first and second
    seats.close(first)
    assert IDLE_CHECKS.read()[()] == checks, "one is held"
    second.pages.append(seats.allocator.allocate(1)[0])
    seats.close(second)
    assert IDLE_CHECKS.read()[()] == checks + 1
    seats.allocator.allocate(1)
    with pytest.raises(AssertionError, match="1 of 8 pages are lost"):
        seats.release(reserve(seats))


def test_reserved_seats_count(seats: Seats) -> None:
    """Selling more seats than there are moves the refusal to the middle of a request."""
    for _ in range(SESSIONS):
        reserve(seats)
    with pytest.raises(Overloaded, match="3 of 3 sessions"):
        reserve(seats)


def test_pages_run_out_before_seats(seats: Seats) -> None:
    """A session without the pages it was promised would fail when it is long."""
    reserve(seats, PAGES * PAGE_SIZE)
    with pytest.raises(Overloaded, match="0 of 8 pages free, 1 asked"):
        reserve(seats)
    assert seats.allocator.num_free == 0


def test_closing_makes_room(seats: Seats, clock: Clock) -> None:
    """A leak of one seat a request ends drafting for good after an hour."""
    for _ in range(3 * SESSIONS):
        tickets = [reserve(seats, 2 * PAGE_SIZE) for _ in range(SESSIONS)]
        sessions = [seats.open(ticket) for ticket in tickets]
        for session in sessions:
            assert session is not None
            seats.close(session)
    assert (seats.num_open, seats.allocator.num_free) == (0, PAGES)


def test_a_seat_given_back_is_free_at_once(seats: Seats) -> None:
    """Refused requests would keep a small draft full until their tickets expire."""
    tickets = [reserve(seats, 2 * PAGE_SIZE) for _ in range(SESSIONS)]
    assert seats.release(tickets[0])
    assert seats.open(tickets[0]) is None
    assert not seats.release(tickets[0])
    session = seats.open(tickets[1])
    assert session is not None
    assert not seats.release(tickets[1]), "an open seat is its session's"
    reserve(seats, 2 * PAGE_SIZE)
    seats.close(session)
    assert seats.allocator.num_free == PAGES - 4


def test_tickets_cannot_be_guessed(seats: Seats) -> None:
    """A neighbour that takes a ticket in sequence would take another's seat."""
    tickets = {reserve(seats) for _ in range(SESSIONS)}
    assert len(tickets) == SESSIONS
    assert all(len(ticket) >= 16 for ticket in tickets)
