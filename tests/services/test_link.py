"""The stream to a draft, against a real draft service and against ones that break the contract."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2
from serving.contract import CONTRACT_VERSION
from serving.errors import ContractMismatch, DraftUnavailable, Mismatch
from serving.guard import guard
from serving.tensors import to_message
from tests.patience import NEVER_S
from tests.services.served import Draft, join_readers, serve_draft
from verify_service import draft_links
from verify_service.draft_link import MAX_ROW_BYTES, GrpcDraftLink
from verify_service.draft_links import MAX_PLACES, DraftLinks
from verify_service.step_streams import GrpcSteps

HELLO = draft_pb2.HandshakeRequest(
    target=verify_pb2.TargetFingerprint(hidden_size=4096, dtype="float32", content_hash="t"),
    draft=verify_pb2.DraftFingerprint(content_hash="d"),
)
Steps = Callable[[draft_pb2.StepRequest], Iterator[draft_pb2.StepResponse]]


def hello(draft: Draft) -> draft_pb2.HandshakeRequest:
    """What the draft service expects."""
    return draft_pb2.HandshakeRequest(
        contract_version=CONTRACT_VERSION,
        target=draft.loaded.target,
        draft=draft.loaded.hello.draft,
        self_test_rows=to_message(draft.loaded.self_test),
    )


def test_an_answer_nobody_waited_for_is_skipped() -> None:
    """After a step that failed between message and answer, every later answer would be one late."""
    with serve_draft() as draft:
        link = GrpcDraftLink(draft.address, hello(draft), timeout_s=30)
        link.send(draft_pb2.StepRequest(steps=[draft_pb2.SessionStep(session=1, step=5)]), None)
        link.send(draft_pb2.StepRequest(steps=[draft_pb2.SessionStep(session=2, step=6)]), None)
        answer = link.receive(30)
        assert answer is not None
        assert [result.session for result in answer.results] == [2]
        assert link.alive
        link.close()
        assert not link.alive


def test_a_stream_that_ends_while_nobody_asks_is_noticed() -> None:
    """A link that only looks alive takes the next request's draft away."""
    with serve_draft() as draft:
        links = DraftLinks(hello(draft), timeout_s=30)
        link = links.get(draft.address)
        link.send(draft_pb2.StepRequest(), None)
        link.receive(30)  # the stream has arrived there
        draft.servicer.end_streams()
        join_readers()
        assert not link.alive
        assert links.get(draft.address).alive
        links.close()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_another_model_is_refused_by_field(role: str) -> None:
    """Verify learns at the handshake, and by which field, that the two do not belong together."""
    with serve_draft() as draft:
        other = hello(draft)
        getattr(other, role).content_hash = "other"
        with pytest.raises(Mismatch, match="start both services with the same") as caught:
            GrpcDraftLink(draft.address, other, timeout_s=30)
    assert caught.value.field == f"{role}.content_hash"
    assert caught.value.actual == "other"


class ScriptedDraft(draft_pb2_grpc.DraftServiceServicer):
    """Says yes to everybody; `steps` answers."""

    def __init__(self, steps: Steps, max_rows: int = 64) -> None:
        self._steps, self._max_rows = steps, max_rows
        self.handshakes = 0
        self.refusal: Exception | None = None

    def Handshake(
        self, request: draft_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> draft_pb2.HandshakeResponse:
        with guard(context):
            self.handshakes += 1
            if self.refusal:
                raise self.refusal
            return draft_pb2.HandshakeResponse(max_rows=self._max_rows, draft=request.draft)

    def ReserveSeat(
        self, request: draft_pb2.ReserveSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReserveSeatResponse:
        return draft_pb2.ReserveSeatResponse(ticket="ticket")

    def ReleaseSeat(
        self, request: draft_pb2.ReleaseSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReleaseSeatResponse:
        return draft_pb2.ReleaseSeatResponse()

    def GetLoads(
        self, request: draft_pb2.DraftServiceGetLoadsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.DraftServiceGetLoadsResponse:
        return draft_pb2.DraftServiceGetLoadsResponse()

    def UpdateDraftWeights(
        self, request: draft_pb2.UpdateDraftWeightsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.UpdateDraftWeightsResponse:
        raise AssertionError("links update nothing")

    def GetProjection(
        self, request: draft_pb2.GetProjectionRequest, context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.GetProjectionResponse]:
        raise AssertionError("links take no projection")

    def Step(
        self, request_iterator: Iterator[draft_pb2.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.StepResponse]:
        for request in request_iterator:
            yield from self._steps(request)


@contextmanager
def served(draft: ScriptedDraft) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    draft_pb2_grpc.add_DraftServiceServicer_to_server(draft, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def never(request: draft_pb2.StepRequest) -> Iterator[draft_pb2.StepResponse]:
    yield from ()


def test_a_draft_that_does_not_answer_in_time_may_still() -> None:
    """A slow answer is no broken stream: the step goes on, the answer is taken when it comes."""
    with served(ScriptedDraft(never)) as address:
        link = GrpcDraftLink(address, HELLO, timeout_s=30)
        link.send(draft_pb2.StepRequest(), None)
        assert link.receive(0.01) is None
        assert link.receive(0) is None
        assert link.alive
        link.close()
        with pytest.raises(DraftUnavailable):
            link.receive(30)


def test_an_answer_from_the_future_is_a_broken_draft() -> None:
    """Answers are numbered so that none is taken for another's."""

    def ahead(request: draft_pb2.StepRequest) -> Iterator[draft_pb2.StepResponse]:
        yield draft_pb2.StepResponse(sequence_number=request.sequence_number + 1)

    with served(ScriptedDraft(ahead)) as address:
        link = GrpcDraftLink(address, HELLO, timeout_s=30)
        link.send(draft_pb2.StepRequest(), None)
        with pytest.raises(DraftUnavailable, match="answered message 2 of 1"):
            link.receive(30)
        assert not link.alive


def test_a_stream_that_breaks_says_why() -> None:
    """The log must tell a crash from a refusal."""

    def crash(request: draft_pb2.StepRequest) -> Iterator[draft_pb2.StepResponse]:
        raise RuntimeError("out of luck")
        yield

    with served(ScriptedDraft(crash)) as address:
        link = GrpcDraftLink(address, HELLO, timeout_s=30)
        link.send(draft_pb2.StepRequest(), None)
        with pytest.raises(DraftUnavailable, match="out of luck"):
            link.receive(30)
        assert not link.alive


@pytest.mark.parametrize(("offered", "taken"), [(7, 7), (10**6, MAX_ROW_BYTES // 16384)])
def test_messages_stay_far_below_the_limit(offered: int, taken: int) -> None:
    """4096 float32 rows of an 8B model are a message that gRPC refuses, ending the stream."""
    with served(ScriptedDraft(never, max_rows=offered)) as address:
        link = GrpcDraftLink(address, HELLO, timeout_s=30)
        assert link.max_rows == taken
        link.close()


def test_links_are_shared_and_replaced() -> None:
    """One stream per pair; a broken one must not be handed out again."""
    draft = ScriptedDraft(never)
    with served(draft) as address:
        links = DraftLinks(HELLO, timeout_s=30)
        first = links.get(address)
        assert links.get(address) is first
        first.close()
        second = links.get(address)
        assert second is not first
        assert (second.alive, draft.handshakes) == (True, 2)
        links.close()
        assert not second.alive


def test_a_draft_that_is_away_is_not_asked_by_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request would wait for the same draft, one after another."""
    monkeypatch.setattr(draft_links, "RETRY_S", NEVER_S)
    draft = ScriptedDraft(never)
    draft.refusal = RuntimeError("not today")
    with served(draft) as address:
        links = DraftLinks(HELLO, timeout_s=30)
        for _ in range(3):
            with pytest.raises(DraftUnavailable):
                links.get(address)
    assert draft.handshakes == 1


def test_a_mismatch_is_told_to_every_request() -> None:
    """It is an error of the installation: quiet plain decoding would hide it."""
    draft = ScriptedDraft(never)
    draft.refusal = ContractMismatch(1, 2)
    with served(draft) as address:
        links = DraftLinks(HELLO, timeout_s=30)
        for _ in range(3):
            with pytest.raises(ContractMismatch):
                links.get(address)
    assert draft.handshakes == 3


def test_addresses_of_nobody_are_forgotten() -> None:
    """Callers name whatever addresses they like; each would be kept for ever."""
    links = DraftLinks(HELLO, timeout_s=0.5)
    for last in range(2 * MAX_PLACES):
        with pytest.raises(DraftUnavailable):
            links.get(f"127.0.1.{last}:1")
    assert len(links._places) <= MAX_PLACES


@pytest.mark.parametrize("answers", [2, 1000])
def test_more_answers_than_messages_are_a_broken_draft(answers: int) -> None:
    """They would gather without a bound, as nobody waits for them."""

    def flood(request: draft_pb2.StepRequest) -> Iterator[draft_pb2.StepResponse]:
        for _ in range(answers):
            yield draft_pb2.StepResponse(sequence_number=request.sequence_number)

    with served(ScriptedDraft(flood)) as address:
        link = GrpcDraftLink(address, HELLO, timeout_s=30)
        link.send(draft_pb2.StepRequest(), None)
        assert link.receive(30) is not None
        join_readers()
        assert not link.alive
        assert isinstance(link._steps, GrpcSteps)
        assert link._steps._incoming.qsize() <= 1
