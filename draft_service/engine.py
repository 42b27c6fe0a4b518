"""The draft's step: open, append rows, run the blocks, roll out, close; one step at a time.

Called by draft_service.servicer with one message per engine step of a verify service.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.begun import BegunBlocks
from draft_service.checks import Refusal, check_step, usable_rows
from draft_service.executor import Network, Part, StepExecutor
from draft_service.seats import Seats, Session
from serving.contract import mode_name
from serving.draft_config import DraftConfig
from serving.errors import BadRequest

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified

CONTEXT_BITS = 63  # a session's error names it as an int64


@dataclass(frozen=True, slots=True)
class Work:
    """A step that passed its checks, its session and its rows in the message."""

    step: draft_pb2.SessionStep
    session: Session
    rows: slice

    def part(self) -> Part:
        """What the executor is to do for it."""
        return Part(
            mode=self.session.mode,
            pages=self.session.pages,
            start=self.session.kv_len,
            rows=self.rows,
            current=self.step.current if self.step.HasField("current") else None,
            draft_tokens=self.step.draft_tokens,
        )


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
        """A ticket for one session; raises BadRequest (mode it cannot run) or Overloaded (full)."""
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
        self, stream: Stream, request: draft_pb2.StepRequest, rows: Tensor | None
    ) -> draft_pb2.StepResponse:
        """One exchange; rows [sum of num_rows, hidden] in order of request.steps.

        Raises BadRequest for a message that cannot be taken apart; sessions are refused one by one.
        """
        asked = time.monotonic_ns()
        self._check_rows(request, rows)
        with self._lock, torch.inference_mode():
            response = draft_pb2.StepResponse(sequence_number=request.sequence_number)
            response.timings.queue_ns = time.monotonic_ns() - asked
            if stream.context_id != self.context_id:
                self.close(stream)
                stream.context_id = self.context_id
            self._open(stream, request, response)
            work = self._admit(stream, request, rows, response)
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
            work = [(step, stream.sessions[step.session]) for step in request.steps]
            for step, session in work:
                session.kv_len += step.num_rows
                session.remember(step)
            self._close(stream, request)
            self._num_early += len(work)

        def finish() -> draft_pb2.StepResponse:
            began = time.monotonic_ns()
            for step, session in work:
                session.last_result.proposals.ids.extend(begun.proposals(step))
            response.results.extend(session.last_result for _, session in work)
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

    def _check_rows(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        expected = sum(_num_rows(step) for step in request.steps)
        actual = 0 if rows is None else len(rows)
        if expected != actual:
            raise BadRequest("rows", f"has {actual} rows, the steps say {expected}")
        if actual > self._max_rows:
            raise BadRequest("rows", f"has {actual} rows, {self._max_rows} at most in one message")

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

    def _admit(
        self,
        stream: Stream,
        request: draft_pb2.StepRequest,
        all_rows: Tensor | None,
        response: draft_pb2.StepResponse,
    ) -> list[Work]:
        """Steps that pass their checks; the others are answered at once."""
        work: list[Work] = []
        usable = [] if all_rows is None else usable_rows(all_rows)
        taken: set[int] = set()
        first = 0
        for step in request.steps:
            rows = slice(first, first + _num_rows(step))
            first = rows.stop
            session = stream.sessions.get(step.session)
            if session and session.answers_again(step):
                response.results.append(session.last_result)
                continue
            try:
                if step.session in taken:
                    raise Refusal(draft_pb2.SESSION_ERROR_REASON_INVALID, "session")
                if not all(usable[rows]):
                    raise Refusal(draft_pb2.SESSION_ERROR_REASON_INVALID, "rows")
                taken.add(step.session)
                work.append(Work(step, check_step(session, step, self._executor.config), rows))
            except Refusal as refused:
                result = response.results.add(session=step.session, error=refused.message())
                result.step = step.step
        return work

    def _run(self, work: list[Work], rows: Tensor | None, response: draft_pb2.StepResponse) -> None:
        """Appends the new rows, drafts for every step that names a current token, and answers."""
        parts = [item.part() for item in work]
        proposals = self._executor.run(parts, rows, response.timings)
        for item, ids in zip(work, proposals, strict=True):
            item.session.kv_len += item.step.num_rows
            item.session.remember(item.step)
            item.session.last_result.proposals.ids.extend(ids[: item.step.draft_tokens])
        response.results.extend(item.session.last_result for item in work)


def _num_rows(step: draft_pb2.SessionStep) -> int:
    """Rows of this step in the message; a count below zero is refused to its session alone."""
    return max(step.num_rows, 0)
