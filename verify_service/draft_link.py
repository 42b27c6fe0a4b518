"""The hot path to one draft service: a long-lived stream, one message each way per engine step."""

import queue
import threading
from collections.abc import Iterator
from typing import Protocol

import grpc
from torch import Tensor

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2
from serving.channel import channel
from serving.contract import CONTRACT_VERSION
from serving.errors import DraftUnavailable, from_rpc_error
from serving.tensors import to_message

HANDSHAKE_TIMEOUT_S = 10.0


class DraftLink(Protocol):
    """Sends steps to a draft and receives its answers, strictly in turn."""

    max_rows: int

    @property
    def alive(self) -> bool:
        """False once an exchange failed; a dead link is replaced, never repaired."""
        ...

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        """Starts one exchange; rows [n, hidden] belong to the request's steps in order."""
        ...

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        """The answer to the last `send`; raises DraftUnavailable, after which the link is dead."""
        ...

    def close(self) -> None:
        """Ends the stream and with it all its sessions."""
        ...


class GrpcDraftLink:
    """DraftService.Step over gRPC, rows inline."""

    def __init__(
        self,
        address: str,
        target: verify_pb2.TargetFingerprint,
        draft: verify_pb2.DraftFingerprint,
    ) -> None:
        """Connects and compares fingerprints; raises Mismatch or DraftUnavailable."""
        self.address, self.alive = address, True
        self._channel = channel(address)
        stub = draft_pb2_grpc.DraftServiceStub(self._channel)
        hello = draft_pb2.HandshakeRequest(
            contract_version=CONTRACT_VERSION, target=target, draft=draft
        )
        try:
            answer = stub.Handshake(hello, timeout=HANDSHAKE_TIMEOUT_S)
        except grpc.RpcError as error:
            self._channel.close()
            raise from_rpc_error(error, f"draft service {address}") from None
        self.max_rows = int(answer.max_rows)
        self._outgoing: queue.SimpleQueue[draft_pb2.StepRequest | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[draft_pb2.StepResponse | str] = queue.SimpleQueue()
        self._stream = stub.Step(iter(self._outgoing.get, None))
        self._sent = 0
        threading.Thread(target=self._read, args=(self._stream,), daemon=True).start()

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self._sent += 1
        request.sequence_number = self._sent
        if rows is not None:
            request.rows.CopyFrom(to_message(rows))
        self._outgoing.put(request)

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        try:
            answer = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            answer = f"no answer within {timeout_s:g} s"
        if isinstance(answer, str):
            self.close()
            raise DraftUnavailable(f"draft service {self.address}", answer)
        assert answer.sequence_number == self._sent, "answers come in order"
        return answer

    def close(self) -> None:
        self.alive = False
        self._outgoing.put(None)
        self._stream.cancel()
        self._channel.close()

    def _read(self, stream: Iterator[draft_pb2.StepResponse]) -> None:
        try:
            for answer in stream:
                self._incoming.put(answer)
            self._incoming.put("the draft ended the stream")
        except grpc.RpcError as error:
            self._incoming.put(str(from_rpc_error(error, "stream")))
