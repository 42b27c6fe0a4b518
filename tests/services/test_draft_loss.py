"""Losing a draft costs speed, never output, however it is lost; a new one is taken up."""

import signal
from functools import partial

import grpc
import pytest

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import channel
from serving.errors import Mismatch, Overloaded, from_rpc_error
from tests.recorded_models import BLOCK, DOMINO_NOSHIFT, PROMPTS
from tests.services.processes import running
from tests.services.requests import generate, seat, start, until_drafted
from tests.services.served import Verify, join_readers, serve_draft, serve_verify
from tests.standing_still import standing_still

PROMPT = PROMPTS[0]


def nowhere(address: str = "127.0.0.1:1") -> verify_pb2.DraftSeat:
    """A seat at an address where nobody listens."""
    return verify_pb2.DraftSeat(
        address=address, ticket="none", mode=spec.MODE_DOMINO, draft_tokens=BLOCK - 1
    )


def test_a_killed_draft_and_its_successor(caplog: pytest.LogCaptureFixture) -> None:
    """kill -9 in the middle of a request: plain from there; a restarted draft is used again."""
    with serve_verify() as verify:
        expected = generate(verify.stub, PROMPT, 400)[0]
        with running("draft_service") as draft, channel(draft.address) as calls:
            place = seat(draft_pb2_grpc.DraftServiceStub(calls), draft.address)
            with standing_still(verify.engine) as until_it_stands:
                call = start(verify.stub, PROMPT, 400, place)
                until_it_stands()
                assert draft.end(signal.SIGKILL) == -signal.SIGKILL
        ids, done = call.finish()
        assert ids == expected
        stats = done.speculation
        assert (stats.mode, stats.proposed_tokens > 0) == (spec.MODE_DOMINO, True)
        assert stats.plain_steps > 100, "no draft is there any more"

        ids, done = generate(verify.stub, PROMPT, 40, nowhere(draft.address))
        assert (ids, done.speculation.mode) == (expected[:40], spec.MODE_AR)
        assert "runs plain: draft service" in caplog.text

        with running("draft_service", port=draft.port) as again, channel(again.address) as calls:
            again_there = partial(seat, draft_pb2_grpc.DraftServiceStub(calls), again.address)
            answers = until_drafted(verify.stub, PROMPT, 40, again_there)
        assert all(ids == expected[:40] for ids, _ in answers)
        assert answers[-1][1].speculation.accepted_tokens > 0
        assert not [r for r in caplog.records if r.exc_info], "losing a draft is no bug"


def test_a_stream_that_ended_while_idle_is_replaced() -> None:
    """A link that only looks alive would leave every later request without proposals."""
    with serve_draft() as draft, serve_verify() as verify:
        first = generate(verify.stub, PROMPT, 30, seat(draft.stub, draft.address))
        assert verify.engine.idle.wait(60)
        draft.servicer.end_streams()
        join_readers()
        second = generate(verify.stub, PROMPT, 30, seat(draft.stub, draft.address))
    assert first[0] == second[0]
    assert first[1].speculation.accepted_tokens == second[1].speculation.accepted_tokens > 0


def test_an_unreachable_draft_lets_a_request_run_plain() -> None:
    """A draft that is down must not take requests down with it."""
    with serve_verify() as verify:
        ids, done = generate(verify.stub, PROMPT, 20, nowhere())
        assert ids == generate(verify.stub, PROMPT, 20)[0]
    assert (done.speculation.mode, done.speculation.width) == (spec.MODE_AR, 1)


def test_a_draft_that_hangs_is_given_up() -> None:
    """A stopped draft holds all requests of its verify service: for the timeout, once."""
    with (
        running("draft_service") as draft,
        channel(draft.address) as calls,
        serve_verify(draft_timeout_s=0.5, draft_connect_s=0.5) as verify,
    ):
        expected = generate(verify.stub, PROMPT, 200)[0]
        stub = draft_pb2_grpc.DraftServiceStub(calls)
        with standing_still(verify.engine) as until_it_stands:
            call = start(verify.stub, PROMPT, 200, seat(stub, draft.address))
            until_it_stands()
            places = [seat(stub, draft.address) for _ in range(2)]
            draft.send(signal.SIGSTOP)
        try:
            ids, done = call.finish()
            later = [generate(verify.stub, PROMPT, 20, place) for place in places]
        finally:
            draft.send(signal.SIGCONT)
    assert ids == expected
    assert done.speculation.plain_steps > 0
    assert [answer[0] for answer in later] == [expected[:20]] * 2
    assert all(answer[1].speculation.mode == spec.MODE_AR for answer in later)


def test_a_draft_that_hangs_for_a_while_costs_one_step_budget() -> None:
    """Requests that wait as long as it takes to give a draft up stand still for all that time."""
    with (
        running("draft_service") as draft,
        channel(draft.address) as calls,
        serve_verify(draft_step_s=0.2) as verify,
    ):
        expected = generate(verify.stub, PROMPT, 200)[0]
        stub = draft_pb2_grpc.DraftServiceStub(calls)
        with standing_still(verify.engine) as until_it_stands:
            call = start(verify.stub, PROMPT, 200, seat(stub, draft.address))
            until_it_stands()
            draft.send(signal.SIGSTOP)
        try:
            ids, done = call.finish()
            meanwhile = generate(verify.stub, PROMPT, 200)[0]
        finally:
            draft.send(signal.SIGCONT)
        assert (ids, meanwhile) == (expected, expected)
        assert done.speculation.plain_steps > 0
        assert verify.engine.idle.wait(60), "the late answer never came"
        [link] = verify.stub.GetLoads(verify_pb2.GetLoadsRequest()).draft_links
        assert link.alive and link.late_answers >= 1
        while not drafted_again(verify, stub, draft.address, expected[:60]):
            pass


def drafted_again(
    verify: Verify, stub: draft_pb2_grpc.DraftServiceStub, address: str, expected: list[int]
) -> int:
    """Tokens of the draft's in an answer; none while nobody waits for one that was late."""
    ids, done = generate(verify.stub, PROMPT, len(expected), seat(stub, address))
    assert ids == expected
    return done.speculation.accepted_tokens


def test_a_full_draft_costs_speed_only() -> None:
    """The second of two requests finds no seat and runs plain beside the first."""
    with serve_draft(max_sessions=1) as draft, serve_verify() as verify:
        expected = generate(verify.stub, PROMPT, 60)[0]
        with standing_still(verify.engine) as until_it_stands:
            first = start(verify.stub, PROMPT, 60, seat(draft.stub, draft.address))
            until_it_stands()
            with pytest.raises(grpc.RpcError) as caught:
                seat(draft.stub, draft.address)
        assert isinstance(from_rpc_error(caught.value), Overloaded)
        plain = generate(verify.stub, PROMPT, 60)
        drafted = first.finish()
    assert plain[0] == drafted[0] == expected
    assert (plain[1].speculation.mode, drafted[1].speculation.mode) == (
        spec.MODE_AR,
        spec.MODE_DOMINO,
    )


def test_a_ticket_that_expired_costs_speed_only(caplog: pytest.LogCaptureFixture) -> None:
    """The router's reservation may be too old by the time the request runs."""
    with serve_draft() as draft, serve_verify() as verify:
        place = seat(draft.stub, draft.address)
        place.ticket = "expired"
        ids, done = generate(verify.stub, PROMPT, 30, place)
        assert ids == generate(verify.stub, PROMPT, 30)[0]
    assert done.speculation.plain_steps == done.speculation.verify_steps
    assert "SESSION_ERROR_REASON_TICKET" in caplog.text


def test_another_draft_is_refused_by_field(caplog: pytest.LogCaptureFixture) -> None:
    """The same shapes with other weights would only show as a low acceptance; requests must not
    fail for it while drafts are updated one after another."""
    with serve_draft(DOMINO_NOSHIFT) as draft, serve_verify() as verify:
        with pytest.raises(grpc.RpcError) as caught:
            request = verify_pb2.ConnectDraftRequest(address=draft.address)
            verify.stub.ConnectDraft(request, timeout=60)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        error = from_rpc_error(caught.value)
        assert isinstance(error, Mismatch)
        assert error.field == "draft.content_hash"
        ids, done = generate(verify.stub, PROMPT, 10, seat(draft.stub, draft.address))
        assert ids == generate(verify.stub, PROMPT, 10)[0]
    assert done.speculation.mode == spec.MODE_AR
    assert "runs plain: draft.content_hash" in caplog.text
    assert "ERROR" in [record.levelname for record in caplog.records]


def test_a_stream_to_another_draft_than_shook_hands(caplog: pytest.LogCaptureFixture) -> None:
    """A draft restarted with other weights behind the same address would accept nothing."""
    with serve_draft() as draft, serve_verify() as verify:
        expected = generate(verify.stub, PROMPT, 30)[0]
        first = verify.links.get(draft.address)
        first.context_id ^= 1
        ids, done = generate(verify.stub, PROMPT, 30, seat(draft.stub, draft.address))
        assert ids == expected
        assert "SESSION_ERROR_REASON_STALE" in caplog.text
        ids, done = generate(verify.stub, PROMPT, 30, seat(draft.stub, draft.address))
        assert verify.links.get(draft.address) is not first
    assert (ids, done.speculation.accepted_tokens > 0) == (expected, True)


def test_a_seat_can_be_given_back() -> None:
    """A request that verify refuses leaves its seat unopened until the ticket expires."""
    with serve_draft(max_sessions=1) as draft:
        ticket = seat(draft.stub, draft.address).ticket
        for expected in (True, False):
            answer = draft.stub.ReleaseSeat(draft_pb2.ReleaseSeatRequest(ticket=ticket))
            assert answer.released == expected
        assert seat(draft.stub, draft.address).ticket != ticket
