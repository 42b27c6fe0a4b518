"""Verify and draft services whose answers are obvious, over real gRPC: ids count upwards."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import SERVER_OPTIONS
from serving.errors import Overloaded, PeerUnavailable, ServingError
from serving.guard import guard

VOCAB_SIZE = 320
MAX_CONTEXT = 64
EOS_ID = 1

HANG = 50  # a prompt ending with it gets HANG + 1, then nothing until it is aborted
BREAK = 51  # a prompt ending with it gets BREAK + 1, then the engine fails


class FakeVerify(verify_pb2_grpc.VerifyServiceServicer):
    """Two tokens a step, each the one before plus 1, from the prompt's last id on."""

    def __init__(
        self,
        *,
        has_draft: bool = True,
        default_draft_tokens: int = 5,
        tokenizer_hash: str = "",
        content_hash: str = "abc",
        hang_after: int | None = None,
        refusal: ServingError | None = None,
        silent_end: bool = False,
    ) -> None:
        """hang_after: chunks of each request before it hangs; refusal: of every request.

        silent_end: it breaks where the last message should come.
        """
        self.requests: queue.SimpleQueue[verify_pb2.VerifyServiceGenerateRequest] = (
            queue.SimpleQueue()
        )
        self.aborts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.connects: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.draft_refusal: ServingError | None = None
        self.meeting: threading.Barrier | None = None  # of the first draft, with other services
        self._running: dict[str, threading.Event] = {}
        self._has_draft, self._default_draft_tokens = has_draft, default_draft_tokens
        self._tokenizer_hash, self._content_hash = tokenizer_hash, content_hash
        self._hang_after, self.refusal, self._silent_end = hang_after, refusal, silent_end

    def Generate(
        self, request: verify_pb2.VerifyServiceGenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[verify_pb2.VerifyServiceGenerateResponse]:
        with guard(context):
            ended = self._running.setdefault(request.request_id, threading.Event())
            context.add_callback(ended.set)
            self.requests.put(request)
            if self.refusal:
                raise self.refusal
            yield from self._answer(request, ended)

    def Abort(
        self, request: verify_pb2.VerifyServiceAbortRequest, context: grpc.ServicerContext
    ) -> verify_pb2.VerifyServiceAbortResponse:
        self.aborts.put(request.request_id)
        ended = self._running.get(request.request_id)
        if ended:
            ended.set()
        return verify_pb2.VerifyServiceAbortResponse(found=ended is not None)

    def GetTarget(
        self, request: verify_pb2.GetTargetRequest, context: grpc.ServicerContext
    ) -> verify_pb2.GetTargetResponse:
        draft = verify_pb2.DraftFingerprint(
            name="draft", block_size=8, has_domino_head=True, content_hash="def"
        )
        return verify_pb2.GetTargetResponse(
            target=verify_pb2.TargetFingerprint(
                name="counter",
                vocab_size=VOCAB_SIZE,
                content_hash=self._content_hash,
                dtype="float32",
                tokenizer_hash=self._tokenizer_hash,
            ),
            draft=draft if self._has_draft else None,
            max_context=MAX_CONTEXT,
            max_sequences=32,
            eos_token_ids=[EOS_ID],
            default_draft_tokens=self._default_draft_tokens,
        )

    def ConnectDraft(
        self, request: verify_pb2.ConnectDraftRequest, context: grpc.ServicerContext
    ) -> verify_pb2.ConnectDraftResponse:
        self.connects.put(request.address)
        if self.meeting:
            self.meeting.wait()
            self.meeting = None
        with guard(context):
            if self.draft_refusal:
                raise self.draft_refusal
        return verify_pb2.ConnectDraftResponse(incarnation="first")

    def Score(
        self, request: verify_pb2.ScoreRequest, context: grpc.ServicerContext
    ) -> verify_pb2.ScoreResponse:
        raise AssertionError("routers score nothing")

    def GetLoads(
        self, request: verify_pb2.GetLoadsRequest, context: grpc.ServicerContext
    ) -> verify_pb2.GetLoadsResponse:
        raise AssertionError("routers read no loads")

    def FlushCache(
        self, request: verify_pb2.FlushCacheRequest, context: grpc.ServicerContext
    ) -> verify_pb2.FlushCacheResponse:
        raise AssertionError("routers flush nothing")

    def _answer(
        self, request: verify_pb2.VerifyServiceGenerateRequest, ended: threading.Event
    ) -> Iterator[verify_pb2.VerifyServiceGenerateResponse]:
        last = request.prompt_ids[-1]
        if last in (HANG, BREAK):
            yield chunk([last + 1])
            if last == BREAK:
                raise PeerUnavailable("verify", "the engine stopped")
            ended.wait()
            yield complete(request, 1, spec.FINISH_REASON_ABORT)
            return
        ids = [(last + 1 + i) % VOCAB_SIZE for i in range(request.max_tokens)]
        stops = [i for i, id_ in enumerate(ids) if id_ in request.stop_token_ids]
        ids = ids[: stops[0] + 1] if stops else ids
        for i in range(0, len(ids), 2):
            if i // 2 == self._hang_after:
                ended.wait()
                return
            yield chunk(ids[i : i + 2], request, steps=i // 2)
        if self._silent_end:
            raise PeerUnavailable("verify", "the engine stopped")
        reason = spec.FINISH_REASON_STOP if stops else spec.FINISH_REASON_LENGTH
        yield complete(request, len(ids), reason, stop_token_id=ids[-1] if stops else None)


def chunk(
    ids: list[int], request: verify_pb2.VerifyServiceGenerateRequest | None = None, steps: int = 0
) -> verify_pb2.VerifyServiceGenerateResponse:
    """After `steps` like it, a step of which one of three proposals was accepted."""
    made = verify_pb2.VerifyChunk(token_ids=ids)
    if request:
        made.step.CopyFrom(spec.StepStats(proposed_tokens=3, accepted_tokens=1))
    if request and request.chunk_stats:
        made.timings.total_ns = steps + 1
        made.speculation.CopyFrom(
            spec.SpeculationStats(
                mode=spec.MODE_DOMINO,
                width=4,
                verify_steps=steps,
                proposed_tokens=3 * steps,
                accepted_tokens=steps,
                accepted_by_position=[steps, 0, 0],
                step_tokens=2 * steps,
            )
        )
    return verify_pb2.VerifyServiceGenerateResponse(chunk=made)


def complete(
    request: verify_pb2.VerifyServiceGenerateRequest,
    num_tokens: int,
    reason: spec.FinishReason.ValueType,
    stop_token_id: int | None = None,
) -> verify_pb2.VerifyServiceGenerateResponse:
    usage = spec.Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=num_tokens)
    mode = request.draft.mode if request.draft.ticket else spec.MODE_AR
    return verify_pb2.VerifyServiceGenerateResponse(
        complete=verify_pb2.VerifyComplete(
            finish_reason=reason,
            stop_token_id=stop_token_id,
            usage=usage,
            speculation=spec.SpeculationStats(
                mode=mode,
                width=request.draft.draft_tokens + 1,
                verify_steps=4,
                proposed_tokens=20,
                accepted_tokens=6,
                accepted_by_position=[4, 2],
                step_tokens=10,
            ),
            timings=spec.RequestTimings(total_ns=7),
        )
    )


class FakeDraft(draft_pb2_grpc.DraftServiceServicer):
    """Gives tickets until `refusal` is set, and takes them back."""

    def __init__(self) -> None:
        self.refusal: ServingError | None = None
        self.reservations: queue.SimpleQueue[draft_pb2.ReserveSeatRequest] = queue.SimpleQueue()
        self.releases: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ReserveSeat(
        self, request: draft_pb2.ReserveSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReserveSeatResponse:
        self.reservations.put(request)
        with guard(context):
            if self.refusal:
                raise self.refusal
        return draft_pb2.ReserveSeatResponse(ticket="ticket", ttl_ms=1000)

    def ReleaseSeat(
        self, request: draft_pb2.ReleaseSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReleaseSeatResponse:
        self.releases.put(request.ticket)
        return draft_pb2.ReleaseSeatResponse(released=True)

    def Handshake(
        self, request: draft_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> draft_pb2.HandshakeResponse:
        raise AssertionError("routers shake no hands")

    def UpdateDraftWeights(
        self, request: draft_pb2.UpdateDraftWeightsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.UpdateDraftWeightsResponse:
        raise AssertionError("routers update nothing")

    def GetProjection(
        self, request: draft_pb2.GetProjectionRequest, context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.GetProjectionResponse]:
        raise AssertionError("routers project nothing")

    def GetLoads(
        self, request: draft_pb2.DraftServiceGetLoadsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.DraftServiceGetLoadsResponse:
        raise AssertionError("routers read no loads")

    def Step(
        self, request_iterator: Iterator[draft_pb2.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.StepResponse]:
        raise AssertionError("routers are not on the per-step path")


FULL = Overloaded("all seats are taken")
WORKERS = 16  # calls that one service answers at once


@contextmanager
def served(service: FakeVerify | FakeDraft, port: int = 0) -> Iterator[str]:
    """The service on a loopback port; gives its address."""
    server = grpc.server(ThreadPoolExecutor(WORKERS), options=SERVER_OPTIONS)
    if isinstance(service, FakeVerify):
        verify_pb2_grpc.add_VerifyServiceServicer_to_server(service, server)
    else:
        draft_pb2_grpc.add_DraftServiceServicer_to_server(service, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        server.stop(None).wait()
