"""How a step's message goes to a draft and its answer comes: gRPC's stream, or a local socket."""

import queue
import threading
from contextlib import suppress
from typing import Final, Protocol

import grpc

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from serving.transport.frames import Frames, FramesEnded

UNASKED: Final = "answers what it was not asked"
SEND_S: Final = 1.0  # a draft of this host that takes no message for so long hangs


class StreamEnded(Exception):
    """Says why; nothing more comes."""


class StepStream(Protocol):
    """Strictly in turn, but for answers that nobody waited for."""

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        ...

    def send(self, request: draft_pb2.StepRequest) -> None:
        """Never raises: `next` tells."""
        ...

    def next(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        """The next answer; None when it is not there in time. Raises StreamEnded."""
        ...

    def close(self) -> None: ...


class GrpcSteps:
    """DraftService.Step, to anywhere."""

    def __init__(self, stub: draft_pb2_grpc.DraftServiceStub) -> None:
        self.alive = True
        self._outgoing: queue.SimpleQueue[draft_pb2.StepRequest | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[draft_pb2.StepResponse | str] = queue.SimpleQueue()
        self._stream = stub.Step(iter(self._outgoing.get, None))
        self._sent = 0
        threading.Thread(target=self._read, name="draft-link", daemon=True).start()

    def send(self, request: draft_pb2.StepRequest) -> None:
        self._sent += 1
        self._outgoing.put(request)

    def next(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        try:
            answer = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(answer, str):
            raise StreamEnded(answer)
        return answer

    def close(self) -> None:
        self.alive = False
        self._outgoing.put(None)
        self._stream.cancel()

    def _read(self) -> None:
        reason = "ended the stream"
        try:
            for count, answer in enumerate(self._stream, start=1):
                if count > self._sent:
                    reason = UNASKED
                    break
                self._incoming.put(answer)
        except grpc.RpcError as error:
            reason = error.details() or error.code().name
        self._incoming.put(reason)
        self.close()


class SocketSteps:
    """A socket of this host: the engine's own thread writes and reads it."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._ended = frames, ""
        self._unanswered = 0

    @property
    def alive(self) -> bool:
        return not self._ended and self._frames.is_open

    def send(self, request: draft_pb2.StepRequest) -> None:
        self._unanswered += 1
        try:
            self._frames.send(request, SEND_S)
        except FramesEnded as error:
            self._ended = str(error)

    def next(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        if self._ended:
            raise StreamEnded(self._ended)
        try:
            answer = self._frames.receive(draft_pb2.StepResponse, timeout_s)
            self._unanswered -= answer is not None
            if self._unanswered < 0:
                raise FramesEnded(UNASKED)
            return answer
        except FramesEnded as error:
            self._ended = str(error)
            raise StreamEnded(self._ended) from error

    def close(self) -> None:
        self._ended = self._ended or "was closed"
        self._frames.close()


def opened(
    stub: draft_pb2_grpc.DraftServiceStub, step_socket: str, *, spin_s: float = 0.0
) -> StepStream:
    """By the socket of that name, where there is one and it can be reached."""
    if step_socket:
        with suppress(OSError):  # another host, user or network namespace
            return SocketSteps(Frames.connected(step_socket, spin_s=spin_s))
    return GrpcSteps(stub)
