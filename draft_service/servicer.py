"""DraftService over gRPC: handshake, seats, and the stream of steps; the next hop is the engine."""

import threading
from collections.abc import Iterator

import grpc
import torch

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from draft_service.engine import DraftEngine, Stream
from draft_service.load import Loaded
from serving.contract import CONTRACT_VERSION
from serving.errors import ContractMismatch, Draining
from serving.fingerprint import require_equal
from serving.guard import guard
from serving.tensors import from_message


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """One handler thread per verify service."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        hidden: int,
        dtype: torch.dtype,
        ttl_s: float,
        draining: threading.Event,
    ) -> None:
        self._loaded, self._engine = loaded, loaded.engine
        self._hidden, self._dtype, self._ttl_ms = hidden, dtype, round(ttl_s * 1000)
        self._draining = draining

    def Handshake(
        self, request: draft_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> draft_pb2.HandshakeResponse:
        with guard(context):
            if request.contract_version != CONTRACT_VERSION:
                raise ContractMismatch(CONTRACT_VERSION, request.contract_version)
            require_equal("target", self._loaded.target, request.target)
            require_equal("draft", self._loaded.hello.draft, request.draft)
            return self._loaded.hello

    def ReserveSeat(
        self, request: draft_pb2.ReserveSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReserveSeatResponse:
        with guard(context):
            if self._draining.is_set():
                raise Draining
            ticket = self._engine.reserve(request.mode, request.max_positions)
            return draft_pb2.ReserveSeatResponse(ticket=ticket, ttl_ms=self._ttl_ms)

    def Step(
        self, request_iterator: Iterator[draft_pb2.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.StepResponse]:
        stream = Stream()
        try:
            with guard(context):
                for request in request_iterator:
                    yield self._answer(self._engine, stream, request)
        finally:
            self._engine.close(stream)

    def _answer(
        self, engine: DraftEngine, stream: Stream, request: draft_pb2.StepRequest
    ) -> draft_pb2.StepResponse:
        rows = None
        if request.HasField("rows"):
            rows = from_message(request.rows, "rows", self._hidden, self._dtype)
        return engine.step(stream, request, rows)
