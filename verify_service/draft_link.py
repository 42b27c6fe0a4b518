"""The hot path to one draft service: a long-lived stream, one message each way per engine step."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import grpc
from torch import Tensor

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import channel
from serving.errors import (
    ContractMismatch,
    DraftUnavailable,
    Mismatch,
    ServingError,
    from_rpc_error,
)
from serving.tensors import DTYPES
from serving.transport.plane import NAMES, NONE, PLANES, SLOT_BYTES, MakeMemory, Plane
from serving.transport.sender import Sender
from verify_service.draft_memory import agree
from verify_service.metrics import ROWS
from verify_service.step_streams import StreamEnded, opened
from verify_service.told_pass import ToldPass

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified

log = logging.getLogger(__name__)

MAX_ROW_BYTES = SLOT_BYTES  # of one message; inline far from gRPC's limit


class DraftUpdated(Exception):
    """A handshake was answered with a newer draft than the one it named."""


class DraftLink(Protocol):
    """Sends steps to a draft and receives its answers, strictly in turn."""

    max_rows: int
    context_id: int  # what sessions are opened with, from the handshake
    projection: int  # the draft's, as verify_service.turns numbers them
    late_answers: int  # counted by verify_service.drafting

    @property
    def plane(self) -> Plane:
        """How rows travel."""
        ...

    @property
    def alive(self) -> bool:
        """False once the stream ended; a dead link is replaced, never repaired."""
        ...

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        """Starts one exchange; rows [n, hidden] belong to the request's steps in order."""
        ...

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        """The answer to the last `send`; None when it is not there in time and may still come.

        Raises DraftUnavailable, after which the link is dead.
        """
        ...

    def close(self) -> None:
        """Ends the stream and with it all its sessions."""
        ...


class SeatedLink(DraftLink, Protocol):
    """A link to a draft service, which also reserves seats there."""

    incarnation: str  # another one is another process

    def reserve(self, mode: spec.Mode.ValueType, max_positions: int) -> str:
        """A ticket for a session; raises Overloaded, DraftUnavailable or another refusal."""
        ...


class GrpcDraftLink:
    """DraftService.Step over gRPC; rows in memory that both sides share, else inline."""

    def __init__(
        self,
        address: str,
        hello: draft_pb2.HandshakeRequest,
        timeout_s: float,
        projection: int = 0,
        memories: Mapping[Plane, MakeMemory] = NONE,
        *,
        spin_s: float = 0.0,
    ) -> None:
        """Connects; raises Mismatch, ContractMismatch (not one of ours) or DraftUnavailable.

        DraftUpdated: the draft there is newer than the one `hello` names.
        """
        self.projection = projection
        self._peer = f"draft service {address}"
        self._channel, self._timeout_s = channel(address), timeout_s
        self._stub = stub = draft_pb2_grpc.DraftServiceStub(self._channel)
        try:
            answer = stub.Handshake(hello, timeout=timeout_s)
        except grpc.RpcError as error:
            self._channel.close()
            raise self._refusal(error) from None
        if answer.draft.content_hash != hello.draft.content_hash:
            self._channel.close()
            raise DraftUpdated
        row_bytes = hello.target.hidden_size * DTYPES[hello.target.dtype].itemsize
        self.max_rows = min(int(answer.max_rows), MAX_ROW_BYTES // row_bytes)
        self.context_id, self.late_answers = answer.context_id, 0
        self.incarnation, self._takes_early = answer.incarnation, answer.early_steps
        self._steps = opened(stub, answer.step_socket, spin_s=spin_s)
        log.info("%s: steps go by %s", self._peer, type(self._steps).__name__)
        self._sent = self._most_results = 0
        self._told: ToldPass | None = None
        self._is_owed = False  # an answer, which would be taken for old behind what is told
        self._vocab_size = hello.target.vocab_size
        self._rows = Sender()
        agree(self, self._rows, memories, answer.data_planes, peer=self._peer, timeout_s=timeout_s)

    @property
    def alive(self) -> bool:
        if not self._steps.alive:
            self.close()  # nobody else would free the memory for rows
            return False
        return True

    @property
    def plane(self) -> Plane:
        return self._rows.plane

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self._sent += 1
        request.sequence_number = self._sent
        self._most_results, self._is_owed = len(request.steps) + len(request.opens), True
        if rows is not None:
            self._rows.put(rows, request)
            ROWS.inc(NAMES[PLANES[request.rows.WhichOneof("payload")]], by=len(rows))
        self._steps.send(request)

    def begin(
        self, sessions: Mapping[int, int], verified: "Verified", count: int
    ) -> ToldPass | None:
        """As verify_service.early_drafts.EarlyLink, by a draft on this host."""
        self._told = None
        if self._is_owed or not (self._takes_early and self._rows.tells_early):
            return None
        told = ToldPass(sessions, verified, count)
        request = draft_pb2.StepRequest(sequence_number=self._sent + 1, early=told.message())
        if not self._rows.put_early(told.chosen, told.rows, count, request):
            return None
        self._sent += 1
        self._steps.send(request)
        told.told(self._has_begun, self._proposed)
        self._told = told
        return told

    def go_on(self, request: draft_pb2.StepRequest) -> ToldPass | None:
        """As EarlyLink: without rows, where the draft has said that it began and it is this."""
        told, self._told = self._told, None
        if told is None or not told.covers(request):
            return None
        self.send(request, None)
        ROWS.inc(NAMES[self.plane], by=sum(step.num_rows for step in request.steps))
        return told

    def _has_begun(self) -> bool:
        """Whether the answer to the last message is there, and says so."""
        try:
            answer = self._steps.next(0)
        except StreamEnded:
            return False  # `receive` tells
        return answer is not None and answer.sequence_number == self._sent and answer.begun

    def _proposed(self) -> Tensor | None:
        ids = self._rows.proposed()
        return None if ids is None else ids.clamp_(0, self._vocab_size - 1)

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        answer = self._next(timeout_s)
        while answer and answer.sequence_number < self._sent:  # to a message nobody waited for
            answer = self._next(timeout_s)
        self._is_owed = answer is None
        if answer is None:
            self._rows.let_go()  # the target does not wait for a late draft
        if answer and answer.sequence_number > self._sent:
            raise self._lost(f"answered message {answer.sequence_number} of {self._sent}")
        if answer and len(answer.results) > self._most_results:
            raise self._lost(f"sent {len(answer.results)} results, {self._most_results} at most")
        return answer

    def reserve(self, mode: spec.Mode.ValueType, max_positions: int) -> str:
        """A ticket for a session; raises Overloaded, DraftUnavailable or another refusal."""
        request = draft_pb2.ReserveSeatRequest(mode=mode, max_positions=max_positions)
        try:
            return self._stub.ReserveSeat(request, timeout=self._timeout_s).ticket
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._peer) from None
        except ValueError as error:  # the channel was closed in between
            raise DraftUnavailable(self._peer, str(error)) from None

    def close(self) -> None:
        self._steps.close()
        self._channel.close()
        self._rows.close()

    def _next(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        try:
            answer = self._steps.next(timeout_s)
        except StreamEnded as error:
            raise self._lost(str(error)) from None
        if answer:
            self._rows.answered(answer.sequence_number)
        return answer

    def _lost(self, reason: str) -> DraftUnavailable:
        self.close()
        return DraftUnavailable(self._peer, reason)

    def _refusal(self, error: grpc.RpcError) -> ServingError:
        """Models that do not fit stay a refusal; everything else only costs speed."""
        cause = from_rpc_error(error, self._peer)
        if isinstance(cause, Mismatch | ContractMismatch):
            return cause
        return DraftUnavailable(self._peer, error.details() or error.code().name)
