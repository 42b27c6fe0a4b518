"""A draft that comes back is used again by the very requests that lost it, without a restart."""

import time
from collections.abc import Iterator

import pytest

from domino_serve.v1 import draft_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from tests.recorded_models import BLOCK, PROMPTS
from tests.services.requests import Call, generate, seat, start
from tests.services.served import (
    Draft,
    Verify,
    join_readers,
    serve_draft,
    serve_verify,
    slow_while_without,
)
from tests.standing_still import standing_still
from verify_service import draft_recovery
from verify_service.draft_link import GrpcDraftLink

PROMPT, LONG = PROMPTS[0], 450


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_recovery, "FIRST_PAUSE_S", 0.02)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Iterator[Verify]:
    with serve_verify() as verify:
        slow_while_without(verify, monkeypatch)
        yield verify


def read_until(call: Call, *, drafted: bool) -> None:
    """Reads chunks up to the first step with, or without, proposals."""
    for event in call.stream:
        call.ids.extend(event.chunk.token_ids)
        if event.chunk.HasField("step") and (event.chunk.step.proposed_tokens > 0) == drafted:
            return
    raise AssertionError(f"no step was {'drafted' if drafted else 'plain'}")


def loads(draft: Draft) -> tuple[int, int, int]:
    answer = draft.stub.GetLoads(draft_pb2.DraftServiceGetLoadsRequest())
    return answer.sessions, answer.reserved, answer.kv_pages_used


def waiting(verify: Verify) -> int:
    return int(verify.stub.GetLoads(verify_pb2.GetLoadsRequest()).waiting_for_draft)


def test_a_restarted_draft_is_used_by_the_request_that_lost_it(verify: Verify) -> None:
    """Prevents one restart of a draft from slowing every running request for its whole life."""
    expected = generate(verify.stub, PROMPT, LONG)[0]
    with standing_still(verify.engine), serve_draft() as first:
        call = start(verify.stub, PROMPT, LONG, seat(first.stub, first.address))
        read_until(call, drafted=True)
    read_until(call, drafted=False)
    with serve_draft(port=int(first.address.rpartition(":")[2])) as second:
        read_until(call, drafted=True)
        ids, done = call.finish()
        assert ids == expected
        whole, alone = generate(verify.stub, PROMPT, LONG, seat(second.stub, second.address))
        assert verify.engine.idle.wait(60)
        assert loads(second) == (0, 0, 0)
    assert whole == expected
    # Replayed rows make the draft what it was: proposals are accepted again, where wrong rows leave
    # one in a hundred steps; most of the answer is drafted, but not all.
    drafted_steps = done.speculation.verify_steps - done.speculation.plain_steps
    rate = done.speculation.accepted_tokens / drafted_steps
    usual = alone.speculation.accepted_tokens / alone.speculation.verify_steps
    assert rate > usual / 4
    assert waiting(verify) == 0


def test_a_request_that_found_no_seat_gets_one_later(verify: Verify) -> None:
    """Prevents a draft that is full for a moment from leaving a request plain for good."""
    with serve_draft(max_sessions=1) as draft:
        taken = seat(draft.stub, draft.address)
        wish = verify_pb2.DraftSeat(
            address=draft.address, mode=spec.MODE_DOMINO, draft_tokens=BLOCK - 1
        )
        call = start(verify.stub, PROMPT, LONG, wish)
        read_until(call, drafted=False)
        assert waiting(verify) == 1
        draft.stub.ReleaseSeat(draft_pb2.ReleaseSeatRequest(ticket=taken.ticket))
        read_until(call, drafted=True)
        ids, done = call.finish()
    assert ids == generate(verify.stub, PROMPT, LONG)[0]
    assert done.speculation.mode == spec.MODE_DOMINO
    assert done.speculation.width == BLOCK


def test_a_request_too_long_for_the_draft_holds_up_no_other(verify: Verify) -> None:
    """Prevents one long request at the head of the queue from keeping all others plain."""
    with serve_draft(kv_tokens=320) as draft:
        wish = verify_pb2.DraftSeat(
            address=draft.address, mode=spec.MODE_DOMINO, draft_tokens=BLOCK - 1
        )
        long = start(verify.stub, PROMPT, LONG, wish)
        read_until(long, drafted=False)
        short = start(verify.stub, PROMPT, 200, wish)
        read_until(short, drafted=True)
        assert waiting(verify) == 0
        ids, done = long.finish()
        assert (done.speculation.mode, len(ids)) == (spec.MODE_AR, LONG)
        assert short.finish()[0] == ids[:200]


@pytest.mark.parametrize("loss", ["ticket", "stream"])
def test_a_lost_session_is_opened_anew(verify: Verify, loss: str) -> None:
    """Prevents a late ticket or a broken stream from costing more than a moment."""
    with serve_draft() as draft:
        place = seat(draft.stub, draft.address)
        if loss == "ticket":
            place.ticket = "expired"
        with standing_still(verify.engine):
            call = start(verify.stub, PROMPT, LONG, place)
            if loss == "stream":
                read_until(call, drafted=True)
                draft.servicer.end_streams()
                join_readers()
        if loss == "stream":
            read_until(call, drafted=False)
        read_until(call, drafted=True)
        assert call.finish()[0] == generate(verify.stub, PROMPT, LONG)[0]


def test_a_fault_of_our_own_ends_no_search(
    verify: Verify, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Prevents a bug from leaving every request plain until the service is started again."""
    faults, reserve = [RuntimeError("a bug")], GrpcDraftLink.reserve

    def reserve_at_last(link: GrpcDraftLink, mode: spec.Mode.ValueType, positions: int) -> str:
        if faults:
            raise faults.pop()
        return reserve(link, mode, positions)

    monkeypatch.setattr(GrpcDraftLink, "reserve", reserve_at_last)
    with serve_draft() as draft:
        wish = verify_pb2.DraftSeat(
            address=draft.address, mode=spec.MODE_DOMINO, draft_tokens=BLOCK - 1
        )
        call = start(verify.stub, PROMPT, LONG, wish)
        read_until(call, drafted=True)
        call.finish()
    assert "a bug" in caplog.text


def test_requests_that_end_stop_looking(verify: Verify) -> None:
    """Prevents a search, and its thread, that outlive the request."""
    wish = verify_pb2.DraftSeat(address="127.0.0.1:1", mode=spec.MODE_DOMINO, draft_tokens=3)
    ids, done = generate(verify.stub, PROMPT, 20, wish)
    assert (len(ids), done.speculation.mode) == (20, spec.MODE_AR)
    assert verify.engine.idle.wait(60)
    while waiting(verify):
        time.sleep(0.01)
