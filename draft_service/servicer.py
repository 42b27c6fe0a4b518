"""DraftService over gRPC: handshake, seats, and the stream of steps; the next hop is the engine."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc
import torch

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from draft_service.early_steps import EarlySteps
from draft_service.engine import Stream
from draft_service.handshake import answer
from draft_service.load import Loaded
from draft_service.metrics import count_step, watch_streams
from draft_service.session_traces import SessionTraces
from draft_service.step_health import StepHealth
from draft_service.update import projection_parts, read_update, swap
from serving.compute_thread import Runs
from serving.contract import SILENT_S
from serving.errors import Draining, ServingError
from serving.garbage import settle
from serving.guard import guard
from serving.transport.frames import Frames, FramesEnded
from serving.transport.receiver import Receiver

TAKEN_S = 20.0  # a verify service of this host that takes no answer for so long hangs
log = logging.getLogger(__name__)


class Peer(Protocol):
    """The other side of a stream."""

    def cancel(self) -> object:
        """Ends the stream; from any thread."""
        ...


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """One handler thread per verify service."""

    def __init__(
        self,
        loaded: Loaded,
        compute: Runs,
        *,
        hidden: int,
        dtype: torch.dtype,
        ttl_s: float,
        draining: threading.Event,
    ) -> None:
        self._loaded, self._engine, self._compute = loaded, loaded.engine, compute
        self._hidden, self._dtype, self._ttl_ms = hidden, dtype, round(ttl_s * 1000)
        self._draining = draining
        self.health = StepHealth(torch.device(loaded.config.device))
        self.step_socket = ""  # where `serve` is called from; told in handshakes
        self._peers: set[Peer] = set()
        self._peers_lock = threading.Lock()
        watch_streams(self._peers)
        self._updating = threading.Lock()

    @property
    def loaded(self) -> Loaded:
        """What is served now."""
        return self._loaded

    def Handshake(
        self, request: draft_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> draft_pb2.HandshakeResponse:
        with guard(context):
            self._check_open()
            if request.synthetic_acceptance:
                log.warning(
                    "SYNTHETIC ACCEPTANCE %.40r: a benchmark's verify service",
                    request.synthetic_acceptance,
                )
            hello = answer(self._loaded, request, self._hidden, self._dtype)
            hello.step_socket = self.step_socket
            hello.early_steps = self._loaded.config.early_steps
            return hello

    def ReserveSeat(
        self, request: draft_pb2.ReserveSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReserveSeatResponse:
        with guard(context):
            self._check_open()
            ticket = self._engine.reserve(request.mode, request.max_positions)
            return draft_pb2.ReserveSeatResponse(ticket=ticket, ttl_ms=self._ttl_ms)

    def ReleaseSeat(
        self, request: draft_pb2.ReleaseSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReleaseSeatResponse:
        released = self._engine.release(request.ticket)
        return draft_pb2.ReleaseSeatResponse(released=released)

    def GetLoads(
        self, request: draft_pb2.DraftServiceGetLoadsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.DraftServiceGetLoadsResponse:
        loads = self._engine.loads()
        loads.streams = len(self._peers)
        return loads

    def Step(
        self, request_iterator: Iterator[draft_pb2.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.StepResponse]:
        with guard(context):
            self._check_open()
            yield from self._answers(_until_gone(request_iterator), context)

    def serve(self, frames: Frames) -> None:
        """Step for a process of this host, in the thread that asks."""
        try:
            if not self._draining.is_set():
                for response in self._answers(_heard(frames), frames):
                    frames.send(response, TAKEN_S)
        except FramesEnded as gone:
            log.debug("a stream of steps is over: %s", gone)
        except ServingError as error:
            log.warning("a stream of steps ends: %s", error)
        except Exception:
            log.exception("a stream of steps ends with an error")
        finally:
            frames.close()

    def _answers(
        self, requests: Iterable[draft_pb2.StepRequest | None], peer: Peer
    ) -> Iterator[draft_pb2.StepResponse]:
        """A stream's answers; its sessions end with it. None: nothing came for long."""
        stream, traces, receiver = Stream(), SessionTraces(), Receiver(self._loaded.kinds)
        early = self._early(stream, receiver)
        with self._peers_lock:
            self._peers.add(peer)
        try:
            for request in requests:
                if request is None:
                    if not stream.sessions:
                        continue
                    log.warning("a verify service is silent; its sessions end")
                    break
                answer = partial(self._answer, stream, receiver, early, request)
                response = self._compute.run(answer)
                yield response
                count_step(request, response)  # while verify runs its pass
                traces.add(request, response)
        finally:
            with self._peers_lock:
                self._peers.remove(peer)
            with self.health.step():
                self._engine.close(stream)
            self._compute.run(receiver.close)
            traces.end()

    def UpdateDraftWeights(
        self, request: draft_pb2.UpdateDraftWeightsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.UpdateDraftWeightsResponse:
        with guard(context), self._updating:
            self._check_open()
            before = self._loaded.hello.draft
            weights = read_update(self._loaded, Path(request.folder))
            changed = weights.checkpoint.content_hash() != before.content_hash
            if changed:
                self._loaded = swap(self._loaded, weights)
                self.end_streams()
                settle()
                log.info("draft %s replaces %s", weights.checkpoint.name, before.name)
            hello = self._loaded.hello
            return draft_pb2.UpdateDraftWeightsResponse(
                draft=hello.draft, context_id=hello.context_id, changed=changed
            )

    def GetProjection(
        self, request: draft_pb2.GetProjectionRequest, context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.GetProjectionResponse]:
        with guard(context):
            self._check_open()
            yield from projection_parts(self._loaded)

    def end_streams(self) -> None:
        """Ends every stream, for a drain or an update: verify services go on without this draft."""
        with self._peers_lock:
            for context in self._peers:
                context.cancel()

    def _check_open(self) -> None:
        if self._draining.is_set():
            raise Draining

    def _early(self, stream: Stream, receiver: Receiver) -> EarlySteps:
        return EarlySteps(self._engine, stream, receiver, hidden=self._hidden, dtype=self._dtype)

    def _answer(
        self,
        stream: Stream,
        receiver: Receiver,
        early: EarlySteps,
        request: draft_pb2.StepRequest,
    ) -> draft_pb2.StepResponse:
        """One exchange, in the engine's thread."""
        with self.health.step():
            if request.HasField("early"):
                alone = len(self._peers) == 1  # others' steps would wait for this one's pass
                begins = alone and self._loaded.config.early_steps and early.begin(request)
                number = request.sequence_number
                return draft_pb2.StepResponse(sequence_number=number, begun=begins)
            if begun := early.answer(request):
                return begun
            offer = receiver.answer(request.offer) if request.HasField("offer") else None
            rows = receiver.rows(request, self._hidden, self._dtype)
            response = self._engine.step(stream, request, rows)
            receiver.release()
        if offer:
            response.offer.CopyFrom(offer)
        return response


def _heard(frames: Frames) -> Iterator[draft_pb2.StepRequest | None]:
    """Messages until the other side closes, and None each time that it is silent for long: a
    process that stands still keeps its socket, which sends no pings as gRPC's does."""
    with suppress(FramesEnded):
        while True:
            yield frames.receive(draft_pb2.StepRequest, SILENT_S)


def _until_gone(requests: Iterator[draft_pb2.StepRequest]) -> Iterator[draft_pb2.StepRequest]:
    """A peer that goes away ends its stream; that is no fault of ours."""
    with suppress(grpc.RpcError):
        yield from requests
