"""A draft service between verify and a real one, which spoils what passes through."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from serving.channel import SERVER_OPTIONS
from tests.services.served import Draft

# One answer of the real draft -> the answers that verify gets.
Fault = Callable[[draft_pb2.StepResponse], Iterator[draft_pb2.StepResponse]]


class FaultyDraft(draft_pb2_grpc.DraftServiceServicer):
    """Everything as the real draft says it, but the answers of steps; `fault` may change."""

    def __init__(self, real: Draft, fault: Fault) -> None:
        self._real, self.fault = real.stub, fault

    def Handshake(
        self, request: draft_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> draft_pb2.HandshakeResponse:
        return self._real.Handshake(request)

    def ReserveSeat(
        self, request: draft_pb2.ReserveSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReserveSeatResponse:
        return self._real.ReserveSeat(request)

    def ReleaseSeat(
        self, request: draft_pb2.ReleaseSeatRequest, context: grpc.ServicerContext
    ) -> draft_pb2.ReleaseSeatResponse:
        return self._real.ReleaseSeat(request)

    def GetLoads(
        self, request: draft_pb2.DraftServiceGetLoadsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.DraftServiceGetLoadsResponse:
        return self._real.GetLoads(request)

    def UpdateDraftWeights(
        self, request: draft_pb2.UpdateDraftWeightsRequest, context: grpc.ServicerContext
    ) -> draft_pb2.UpdateDraftWeightsResponse:
        return self._real.UpdateDraftWeights(request)

    def GetProjection(
        self, request: draft_pb2.GetProjectionRequest, context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.GetProjectionResponse]:
        yield from self._real.GetProjection(request)

    def Step(
        self, request_iterator: Iterator[draft_pb2.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.StepResponse]:
        stream = self._real.Step(request_iterator)

        def end() -> None:
            stream.cancel()

        context.add_callback(end)
        for answer in stream:
            yield from self.fault(answer)


@contextmanager
def faulty(real: Draft, fault: Fault) -> Iterator[str]:
    """Its address."""
    server = grpc.server(ThreadPoolExecutor(16), options=SERVER_OPTIONS)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(FaultyDraft(real, fault), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
