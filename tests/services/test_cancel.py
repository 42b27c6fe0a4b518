"""Clients that leave, however and whenever: both services are free again, nobody else notices."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from draft_service.engine import Stream
from tests.recorded_models import PROMPTS
from tests.services.requests import generate, seat, start
from tests.services.served import Draft, Verify, serve_draft, serve_verify
from tests.standing_still import standing_still
from verify_service.draft_link import GrpcDraftLink

PROMPT, LONG = PROMPTS[0], 450
Services = tuple[Draft, Verify]


@pytest.fixture
def services() -> Iterator[Services]:
    """A draft with one seat; once verify is idle, the seat and every page must be free."""
    with serve_draft(max_sessions=1) as draft, serve_verify() as verify:
        yield draft, verify
        assert verify.engine.idle.wait(60)
        loads = verify.stub.GetLoads(verify_pb2.GetLoadsRequest())
        assert (loads.running, loads.waiting, loads.kv_pages_used) == (0, 0, 0)
        assert seat(draft.stub, draft.address).ticket


def test_a_client_that_cancels_frees_both_sides(services: Services) -> None:
    """A page or a seat lost per cancelled request stops the service within a day."""
    draft, verify = services
    with standing_still(verify.engine):
        call = start(verify.stub, PROMPT, LONG, seat(draft.stub, draft.address))
        call.stream.cancel()


def test_neighbours_of_a_cancelled_request_are_untouched() -> None:
    """Pages freed too early would be written by the next request."""
    with serve_draft() as draft, serve_verify() as verify:
        expected = generate(verify.stub, PROMPT, 60)[0]
        left = start(verify.stub, PROMPTS[1], LONG, seat(draft.stub, draft.address))
        stays = start(verify.stub, PROMPT, 60, seat(draft.stub, draft.address))
        left.stream.cancel()
        follows = start(verify.stub, PROMPT, 60, seat(draft.stub, draft.address))
        assert stays.finish()[0] == follows.finish()[0] == expected


def test_abort_ends_a_request_and_says_so(services: Services) -> None:
    """The router's Abort must tell a running request from one that is unknown."""
    draft, verify = services
    with standing_still(verify.engine):
        call = start(verify.stub, PROMPT, LONG, seat(draft.stub, draft.address), request_id="mine")
        assert verify.stub.Abort(verify_pb2.VerifyServiceAbortRequest(request_id="mine")).found
    ids, done = call.finish()
    assert done.finish_reason == spec.FINISH_REASON_ABORT
    assert done.usage.completion_tokens == len(ids) < LONG
    assert not verify.stub.Abort(verify_pb2.VerifyServiceAbortRequest(request_id="mine")).found


class Context:
    """A call seen from its handler; `ended` is what a real one runs when the call is over."""

    def __init__(self, *, over: bool = False) -> None:
        self.over = over
        self.ended: Callable[[], None] | None = None

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.ended = callback
        return not self.over


def handle(verify: Verify, context: Context, max_tokens: int) -> Iterator[Any]:
    request = verify_pb2.VerifyServiceGenerateRequest(
        request_id="same", prompt_ids=PROMPT, max_tokens=max_tokens
    )
    return iter(verify.servicer.Generate(request, context))  # type: ignore[arg-type]


def test_a_client_that_left_before_the_handler_looked() -> None:
    """gRPC runs no callback that is added after the end: the request would run for nobody."""
    with serve_verify() as verify:
        *_, last = handle(verify, Context(over=True), LONG)
    assert last.complete.finish_reason == spec.FINISH_REASON_ABORT


def test_the_end_of_one_call_does_not_end_the_next_of_its_name() -> None:
    """A retry with the same id must not be killed by the late end of the first try."""
    with serve_verify() as verify:
        first, second = Context(), Context()
        list(handle(verify, first, 3))
        events = handle(verify, second, 30)
        next(events)
        assert first.ended is not None
        first.ended()
        *_, last = events
    assert last.complete.finish_reason == spec.FINISH_REASON_LENGTH


def test_a_verify_service_that_dies_frees_its_seats(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seats of the dead fill the draft; a traceback for every lost peer hides real faults."""
    with serve_draft(max_sessions=1) as draft, serve_verify() as verify:
        freed, close = threading.Event(), draft.loaded.engine.close

        def close_and_tell(stream: Stream) -> None:
            close(stream)
            freed.set()

        monkeypatch.setattr(draft.loaded.engine, "close", close_and_tell)
        call = start(verify.stub, PROMPT, 120, seat(draft.stub, draft.address))
        call.read(1)  # the session is open
        [(_, link)] = verify.links.items()
        assert isinstance(link, GrpcDraftLink)
        freed.clear()  # its first step began with an empty stream
        link.close()
        assert freed.wait(60)
        assert seat(draft.stub, draft.address).ticket
        assert call.finish()[1].finish_reason == spec.FINISH_REASON_LENGTH
    assert not [record for record in caplog.records if record.exc_info]
