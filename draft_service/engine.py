"""The draft's step: open, append rows, run the blocks, roll out, close; one step at a time.

Called by draft_service.servicer with one message per engine step of a verify service.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.admission import Work, admitted, check_rows
from draft_service.begun import BegunBlocks
from draft_service.checks import Refusal
from draft_service.executor import Network, Part, StepExecutor
from draft_service.seats import Seats, Session
from serving.contract import mode_name
from serving.draft_config import DraftConfig
from serving.errors import BadRequest

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified

CONTEXT_BITS = 63  # a session's error names it as an int64


class Stream:
    """The sessions of one verify service; they end with it."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}
        self.context_id: int | None = None  # of the weights that made their KV


class DraftEngine:
    """Sessions, and what each of their steps asks of the executor."""

    def __init__(self, executor: StepExecutor, seats: Seats, *, max_rows: int) -> None:
        self._executor, self._seats, self._max_rows = executor, seats, max_rows
        self._lock = threading.Lock()
        self._num_early = 0
        self.context_id = secrets.randbits(CONTEXT_BITS)  # of this process and its weights

    @property
    def config(self) -> DraftConfig:
        """The draft's."""
        return self._executor.config

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._executor.kv.k.device

    def reserve(self, mode: spec.Mode.ValueType, max_positions: int) -> str:
        """A ticket for one session.

        Raises BadRequest (a mode it cannot run, more positions than fit) or Overloaded (full).
        """
        if mode not in self._executor.modes:
            raise BadRequest("mode", f"this checkpoint cannot draft in mode {mode_name(mode)}")
        if max_positions < 1:
            raise BadRequest("max_positions", f"{max_positions} is below 1")
        config = self._executor.config
        positions = min(max_positions + config.block_size, config.max_context)
        return self._seats.reserve(mode, positions)

    def release(self, ticket: str) -> bool:
        """Gives a reserved seat back; False when there is none to give back."""
        return self._seats.release(ticket)

    def loads(self) -> draft_pb2.DraftServiceGetLoadsResponse:
        """Seats and pages that are taken, and how steps were run."""
        loads = self._seats.loads()
        loads.graph_steps = self._executor.num_graph
        loads.eager_steps = self._executor.num_eager
        loads.early_steps = self._num_early
        return loads

    def step(
        self,
        stream: Stream,
        request: draft_pb2.StepRequest,
        rows: Tensor | None,
        *,
        unseen: bool = False,
    ) -> draft_pb2.StepResponse:
        """One exchange; rows [sum of num_rows, hidden] in order of request.steps, `unseen` where
        the device may still make them.

        Raises BadRequest for a message that cannot be taken apart; sessions are refused one by one.
        """
        asked = time.monotonic_ns()
        check_rows(request, rows, self._max_rows)
        with self._lock, torch.inference_mode():
            response = draft_pb2.StepResponse(sequence_number=request.sequence_number)
            response.timings.queue_ns = time.monotonic_ns() - asked
            if stream.context_id != self.context_id:
                self.close(stream)
                stream.context_id = self.context_id
            self._open(stream, request, response)
            config = self._executor.config
            work = admitted(stream.sessions, request, rows, config, response, unseen=unseen)
            self._run(work, rows, response)
            self._close(stream, request)
            return response

    def begin(
        self, stream: Stream, sessions: Mapping[int, int], verified: "Verified", count: int
    ) -> BegunBlocks | None:
        """Starts the next blocks of these sessions, `count` proposals each, behind a verify step on
        the same device; None where that cannot be.

        sessions: in the order of the verify step, with the most rows it may give each.
        """
        with self._lock:
            found = [stream.sessions.get(number) for number in sessions]
            known = [session for session in found if session]
            same = len(known) == len(found) and len({session.mode for session in known}) == 1
            block = self._executor.config.block_size
            if not same or not all(
                session.kv_len + most + block <= session.max_positions
                for session, most in zip(known, sessions.values(), strict=True)
            ):
                return None
            parts = [Part.waiting(s.mode, s.pages, s.kv_len, count) for s in known]
            step = self._executor.begin(parts, verified, count)
            if step is None:
                return None
            rows = {number: row for row, number in enumerate(sessions)}
            starts = [session.kv_len for session in known]
            return BegunBlocks(step=step, sessions=rows, starts=starts, count=count)

    def go_on(
        self, stream: Stream, request: draft_pb2.StepRequest, begun: BegunBlocks
    ) -> Callable[[], draft_pb2.StepResponse]:
        """The books of a message that `begun` covers; what waits for its answer."""
        response = draft_pb2.StepResponse(sequence_number=request.sequence_number)
        with self._lock:
            work = [
                (step, stream.sessions[step.session].taken(step, response.results.add()))
                for step in request.steps
            ]
            self._close(stream, request)
            self._num_early += len(work)

        def finish() -> draft_pb2.StepResponse:
            began = time.monotonic_ns()
            for step, result in work:
                result.proposals.ids.extend(begun.proposals(step))
            response.timings.backbone_ns = time.monotonic_ns() - began
            return response

        return finish

    def replace(self, network: Network) -> int:
        """Drafts with other weights of the same shape from the next step on, which ends all
        sessions; the new context_id."""
        with self._lock:
            self._executor = network.executor(self._executor.kv)
            self.context_id = secrets.randbits(CONTEXT_BITS)
            return self.context_id

    def close(self, stream: Stream) -> None:
        """Frees every session of a stream that ended; none of its steps may be running."""
        for session in stream.sessions.values():
            self._seats.close(session)
        stream.sessions.clear()

    def _close(self, stream: Stream, request: draft_pb2.StepRequest) -> None:
        for number in request.closes:
            if session := stream.sessions.pop(number, None):
                self._seats.close(session)

    def _open(
        self, stream: Stream, request: draft_pb2.StepRequest, response: draft_pb2.StepResponse
    ) -> None:
        for opening in request.opens:
            try:
                stream.sessions[opening.session] = self._opened(stream, opening)
            except Refusal as refused:
                response.results.add(session=opening.session, error=refused.message())

    def _opened(self, stream: Stream, opening: draft_pb2.SessionOpen) -> Session:
        if opening.context_id != self.context_id:
            stale = draft_pb2.SESSION_ERROR_REASON_STALE
            actual = opening.context_id % (1 << CONTEXT_BITS)
            raise Refusal(stale, "context_id", self.context_id, actual)
        session = self._seats.open(opening.ticket)
        if session is None:
            raise Refusal(draft_pb2.SESSION_ERROR_REASON_TICKET, "ticket")
        if opening.session in stream.sessions or opening.mode != session.mode:
            self._seats.close(session)
            raise Refusal(draft_pb2.SESSION_ERROR_REASON_INVALID, "session or mode")
        return session

    def _run(self, work: list[Work], rows: Tensor | None, response: draft_pb2.StepResponse) -> None:
        """Appends the new rows, drafts for every step that names a current token, and answers."""
        parts = [item.part() for item in work]
        proposals = self._executor.run(parts, rows, response.timings)
        for item, ids in zip(work, proposals, strict=True):
            result = item.session.taken(item.step, response.results.add())
            result.proposals.ids.extend(ids[: item.step.draft_tokens])
