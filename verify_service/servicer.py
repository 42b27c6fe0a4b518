"""VerifyService over gRPC: checks requests, hands them to the engine, streams its events back."""

import logging
import queue
import threading
from collections.abc import Iterator

import grpc

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.contract import mode_name
from serving.draft_config import DraftConfig
from serving.errors import (
    BadRequest,
    ContractMismatch,
    DraftUnavailable,
    Draining,
    Mismatch,
    ServingError,
)
from serving.guard import guard
from serving.log import serving_request
from serving.trace import Span, parent_of
from verify_service.checks import check_address, check_generate, check_score, sampling_params
from verify_service.draft_links import DraftLinks
from verify_service.draft_recovery import DraftRecovery
from verify_service.engine import Engine
from verify_service.loads import loads
from verify_service.scoring import collect_scores, score_request
from verify_service.sequence import DraftPlan, DraftWish, Event, Request

log = logging.getLogger(__name__)


class VerifyServicer(verify_pb2_grpc.VerifyServiceServicer):
    """One handler thread per running request; the next hop is verify_service.engine."""

    def __init__(
        self,
        engine: Engine,
        info: verify_pb2.GetTargetResponse,
        draft: DraftConfig | None,
        links: DraftLinks,
        draining: threading.Event,
    ) -> None:
        self._engine, self._info, self._draft, self._links = engine, info, draft, links
        self._draining = draining
        self._recovery = DraftRecovery(engine, links)
        engine.drafting.want = self._recovery.want

    def Generate(
        self, request: verify_pb2.VerifyServiceGenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[verify_pb2.VerifyServiceGenerateResponse]:
        name = request.request_id
        span = Span("verify", parent_of(context), request_id=name[:200])
        with guard(context), serving_request(name), span:
            check_generate(request, self._info)
            wish = self._wish(request)
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            self._submit(
                context,
                Request(
                    request_id=request.request_id,
                    prompt_ids=list(request.prompt_ids),
                    max_tokens=request.max_tokens,
                    stop_ids=frozenset(request.stop_token_ids),
                    emit=events.put,
                    draft=self._plan(request, wish) if wish else None,
                    wish=wish,
                    keeps_rows=wish is not None,
                    sampling=sampling_params(request.sampling),
                    min_tokens=request.min_tokens,
                    chunk_stats=request.chunk_stats,
                    traceparent=span.traceparent,
                ),
            )
            for response in _responses(events):
                if response.HasField("complete"):
                    span.set(**_figures(response.complete))
                yield response

    def Abort(
        self, request: verify_pb2.VerifyServiceAbortRequest, context: grpc.ServicerContext
    ) -> verify_pb2.VerifyServiceAbortResponse:
        return verify_pb2.VerifyServiceAbortResponse(found=self._engine.abort(request.request_id))

    def Score(
        self, request: verify_pb2.ScoreRequest, context: grpc.ServicerContext
    ) -> verify_pb2.ScoreResponse:
        with guard(context):
            check_score(request, self._info)
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            self._submit(context, score_request(request, events.put))
            return collect_scores(events)

    def GetTarget(
        self, request: verify_pb2.GetTargetRequest, context: grpc.ServicerContext
    ) -> verify_pb2.GetTargetResponse:
        return self._info

    def ConnectDraft(
        self, request: verify_pb2.ConnectDraftRequest, context: grpc.ServicerContext
    ) -> verify_pb2.ConnectDraftResponse:
        with guard(context):
            if self._draft is None:
                raise BadRequest("address", "this service was started without --draft")
            check_address("address", request.address)
            link = self._links.get(request.address)
            return verify_pb2.ConnectDraftResponse(incarnation=link.incarnation)

    def GetLoads(
        self, request: verify_pb2.GetLoadsRequest, context: grpc.ServicerContext
    ) -> verify_pb2.GetLoadsResponse:
        return loads(self._engine, self._links, self._recovery)

    def FlushCache(
        self, request: verify_pb2.FlushCacheRequest, context: grpc.ServicerContext
    ) -> verify_pb2.FlushCacheResponse:
        # No page outlives its sequence, so there is nothing to drop.
        return verify_pb2.FlushCacheResponse(freed_pages=0)

    def _submit(self, context: grpc.ServicerContext, request: Request) -> None:
        """Hands a request over; the engine ends it when its client is gone."""
        if self._draining.is_set():
            raise Draining
        cancel = self._engine.submit(request)
        # The handler's thread waits for events, so the engine must hear of a lost client here.
        if not context.add_callback(cancel):
            cancel()  # the client left before

    def _wish(self, request: verify_pb2.VerifyServiceGenerateRequest) -> DraftWish | None:
        """The draft it is to have; None for a plain request."""
        if not request.HasField("draft"):
            return None
        seat = request.draft
        if self._draft is None:
            raise BadRequest("draft", "this service was started without --draft")
        if seat.mode not in (spec.MODE_DFLASH, spec.MODE_DOMINO, spec.MODE_DSPARK):
            raise BadRequest("draft.mode", f"{mode_name(seat.mode)} does not draft")
        limit = self._draft.max_draft_tokens
        if not 1 <= seat.draft_tokens <= limit:
            raise BadRequest("draft.draft_tokens", f"{seat.draft_tokens} is not in [1, {limit}]")
        check_address("draft.address", seat.address)
        return DraftWish(address=seat.address, mode=seat.mode, draft_tokens=seat.draft_tokens)

    def _plan(
        self, request: verify_pb2.VerifyServiceGenerateRequest, wish: DraftWish
    ) -> DraftPlan | None:
        """Its place there; None where there is none yet: the request begins plain."""
        ticket = request.draft.ticket
        if not ticket:
            return None
        try:
            link = self._links.get(wish.address)
        except (DraftUnavailable, Mismatch, ContractMismatch) as error:
            refused = not isinstance(error, DraftUnavailable)  # the operator's to mend
            level = logging.ERROR if refused else logging.WARNING
            log.log(level, "request %s runs plain: %s", request.request_id, error)
            return None
        return DraftPlan(link=link, ticket=ticket, mode=wish.mode, draft_tokens=wish.draft_tokens)


def _figures(end: verify_pb2.VerifyComplete) -> dict[str, int]:
    """A request's, for its span."""
    stats, timings = end.speculation, end.timings
    return {
        "prompt_tokens": end.usage.prompt_tokens,
        "completion_tokens": end.usage.completion_tokens,
        "verify_steps": stats.verify_steps,
        "plain_steps": stats.plain_steps,
        "accepted_tokens": stats.accepted_tokens,
        "queue_ns": timings.queue_ns,
        "first_token_ns": timings.first_token_ns,
        "verify_ns": timings.verify_ns,
        "draft_ns": timings.draft_ns,
    }


def _responses(
    events: "queue.SimpleQueue[Event]",
) -> Iterator[verify_pb2.VerifyServiceGenerateResponse]:
    while True:
        event = events.get()
        if isinstance(event, ServingError):
            raise event
        if isinstance(event, verify_pb2.VerifyComplete):
            yield verify_pb2.VerifyServiceGenerateResponse(complete=event)
            return
        assert isinstance(event, verify_pb2.VerifyChunk), "scores are for Score"
        yield verify_pb2.VerifyServiceGenerateResponse(chunk=event)
