"""`python -m benchmarks.null_draft`: a draft service that takes rows and proposes nothing of worth.

What a step costs beside the models: benchmarks.data_plane sends to it.
"""

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import torch

from domino_serve.v1 import draft_pb2 as pb
from serving.compute_thread import ComputeThread, Here, Runs
from serving.options import field, parse
from serving.process import run
from serving.server import Server
from serving.service_options import ServiceOptions
from serving.tensors import DTYPES
from serving.transport.choice import taken
from serving.transport.frames import Frames
from serving.transport.frames_listener import FramesListener
from serving.transport.receiver import Receiver

SERVICE: Final = "domino_serve.v1.DraftService"
PROPOSALS = tuple(range(1000, 1015))
MAX_ROWS = 4096
CYCLES_A_MS = 1_900_000  # of an H200


@dataclass(frozen=True, kw_only=True, slots=True)
class NullDraftConfig(ServiceOptions):
    host: str = field("127.0.0.1", help="address to listen on")
    port: int = field(0, help="port to listen on")
    device: str = field("cpu", help="where rows go")
    hidden: int = field(4096, help="values of a row")
    dtype: str = field("bfloat16", help="of a row")
    step_socket: bool = field(False, help="steps go by a local socket, not by gRPC")
    busy_ms: float = field(0.0, help="a model's time on a GPU, about")
    spin_s: float = field(0.0, help="how long it looks for a message there before it sleeps")


class NullDraft:
    """Copies rows to where a draft's kernels read them, then answers; of DraftService's calls it
    has the two that a link needs."""

    def __init__(self, config: NullDraftConfig, compute: Runs) -> None:
        self._dtype, self._hidden, self._compute = DTYPES[config.dtype], config.hidden, compute
        self._device = torch.device(config.device)
        self._busy = round(config.busy_ms * CYCLES_A_MS)
        shape = (MAX_ROWS, config.hidden)
        self._projected = torch.zeros(shape, dtype=self._dtype, device=self._device)
        self._kinds = {**taken("auto", self._device), **taken("nccl", self._device)}
        listener = partial(FramesListener, spin_s=config.spin_s)
        self._listener = listener() if config.step_socket else None
        if self._listener:
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def Handshake(
        self, request: pb.HandshakeRequest, context: grpc.ServicerContext
    ) -> pb.HandshakeResponse:
        planes = [plane for plane in request.data_planes if plane in self._kinds]
        return pb.HandshakeResponse(
            draft=request.draft,
            max_rows=MAX_ROWS,
            data_planes=planes,
            step_socket=self._listener.name if self._listener else "",
        )

    def Step(
        self, request_iterator: Iterator[pb.StepRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.StepResponse]:
        yield from self._answers(request_iterator)

    def _accept(self, listener: FramesListener) -> None:
        while frames := listener.accept():
            threading.Thread(target=self._serve, args=(frames,), daemon=True).start()

    def _serve(self, frames: Frames) -> None:
        for answer in self._answers(frames.messages(pb.StepRequest)):
            frames.send(answer, None)

    def _answers(self, requests: Iterator[pb.StepRequest]) -> Iterator[pb.StepResponse]:
        receiver = Receiver(self._kinds)
        for request in requests:
            yield self._compute.run(partial(self._answer, receiver, request))
        self._compute.run(receiver.close)

    def _answer(self, receiver: Receiver, request: pb.StepRequest) -> pb.StepResponse:
        answer = pb.StepResponse(sequence_number=request.sequence_number)
        if request.HasField("offer"):
            answer.offer.CopyFrom(receiver.answer(request.offer))
        rows = receiver.rows(request, self._hidden, self._dtype)
        if rows is not None:
            self._projected[: len(rows)].copy_(rows, non_blocking=True)
        if self._device.type == "cuda":
            if request.steps:
                torch.cuda._sleep(self._busy)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(self._device)  # as a draft's step ends
        receiver.release()
        for step in request.steps:
            result = answer.results.add(session=step.session, step=step.step)
            result.proposals.ids.extend(PROPOSALS)
        return answer


def handlers(servicer: NullDraft) -> grpc.GenericRpcHandler:
    """Of both calls."""
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Handshake": grpc.unary_unary_rpc_method_handler(
            servicer.Handshake,
            pb.HandshakeRequest.FromString,
            pb.HandshakeResponse.SerializeToString,
        ),
        "Step": grpc.stream_stream_rpc_method_handler(
            servicer.Step, pb.StepRequest.FromString, pb.StepResponse.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def main() -> int:
    config = parse(NullDraftConfig, prog="python -m benchmarks.null_draft", description="Null.")
    server = Server("null-draft", host=config.host, port=config.port, grace_s=1.0, options=config)
    compute: Runs = ComputeThread("null-draft")
    if config.device.startswith("cuda"):
        index = torch.device(config.device).index or 0
        compute = Here(lambda: torch.cuda.set_device(index))
    servicer = compute.run(lambda: NullDraft(config, compute))
    server.grpc.add_generic_rpc_handlers((handlers(servicer),))
    server.start(SERVICE)
    server.ready()
    return server.wait()


if __name__ == "__main__":
    sys.exit(run(main, "null-draft"))
