"""Seats: draft sessions and the pages they hold, from reservation to close."""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from domino_kernels.paged_kv import PageAllocator
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.metrics import IDLE_CHECKS, watch_seats
from serving.errors import BadRequest, Overloaded


@dataclass(slots=True, kw_only=True)
class Session:
    """One sequence's draft state: positions 0..kv_len-1 of its pages hold context KV."""

    mode: spec.Mode.ValueType
    pages: list[int]
    max_positions: int
    step: int = 0
    kv_len: int = 0
    last_result: draft_pb2.SessionResult = field(default_factory=draft_pb2.SessionResult)

    def answers_again(self, step: draft_pb2.SessionStep) -> bool:
        """Whether this very step was answered already; a repeated message gets the same answer."""
        last = self.last_result
        return last.HasField("proposals") and step.step == last.step

    def taken(
        self, step: draft_pb2.SessionStep, result: draft_pb2.SessionResult
    ) -> draft_pb2.SessionResult:
        """Notes a step whose rows are appended; its result, an empty one of the answer, to which
        only the proposals are to be added."""
        self.kv_len += step.num_rows
        self.step = step.step
        result.session, result.step = step.session, self.step
        result.proposals.draft_kv_len = self.kv_len
        self.last_result = result
        return result


class Seats:
    """Reserved and open sessions; safe from any thread, so that nobody waits for a step here."""

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        max_sessions: int,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.allocator = PageAllocator(pages)
        self._page_size, self._max_sessions, self._ttl_s = page_size, max_sessions, ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._reserved: dict[str, tuple[float, Session]] = {}
        self.num_open = 0
        watch_seats(self)

    @property
    def num_reserved(self) -> int:
        """Seats whose ticket waits to be opened, expired ones too until somebody looks."""
        return len(self._reserved)

    def reserve(self, mode: spec.Mode.ValueType, max_positions: int) -> str:
        """Takes a seat for `max_positions` positions and returns its ticket.

        Raises Overloaded, or BadRequest where there never will be so many pages.
        """
        pages, total = -(-max_positions // self._page_size), self.allocator.num_pages
        if pages > total:
            raise BadRequest(
                "max_positions",
                f"{max_positions} positions need {pages} KV pages, the draft has {total}; raise "
                "its --kv-tokens",
            )
        with self._lock:
            self._expire()
            taken = self.num_open + len(self._reserved)
            if taken >= self._max_sessions or not self.allocator.can_allocate(pages):
                raise Overloaded(
                    f"the draft is full: {taken} of {self._max_sessions} sessions, "
                    f"{self.allocator.num_free} of {total} pages free, {pages} asked"
                )
            ticket = secrets.token_hex(8)
            session = Session(
                mode=mode, pages=self.allocator.allocate(pages), max_positions=max_positions
            )
            self._reserved[ticket] = (self._clock() + self._ttl_s, session)
            return ticket

    def open(self, ticket: str) -> Session | None:
        """The seat behind a ticket, once; None when it is unknown, used or expired."""
        with self._lock:
            self._expire()
            deadline_and_session = self._reserved.pop(ticket, None)
            if deadline_and_session is None:
                return None
            self.num_open += 1
            return deadline_and_session[1]

    def release(self, ticket: str) -> bool:
        """Frees a reserved seat; False when it was opened, has expired or never was."""
        with self._lock:
            deadline_and_session = self._reserved.pop(ticket, None)
            if deadline_and_session:
                self.allocator.release(deadline_and_session[1].pages)
                self._check()
            return deadline_and_session is not None

    def close(self, session: Session) -> None:
        """Frees an open seat."""
        with self._lock:
            self.num_open -= 1
            self.allocator.release(session.pages)
            self._check()

    def loads(self) -> draft_pb2.DraftServiceGetLoadsResponse:
        """Seats and pages that are taken; expired tickets are not."""
        with self._lock:
            self._expire()
            pages = self.allocator
            return draft_pb2.DraftServiceGetLoadsResponse(
                sessions=self.num_open,
                reserved=len(self._reserved),
                max_sessions=self._max_sessions,
                kv_pages_used=pages.num_pages - pages.num_free,
                kv_pages_total=pages.num_pages,
            )

    def _check(self) -> None:
        """Raises AssertionError when nobody holds anything and pages are missing all the same."""
        if not self.num_open and not self._reserved:
            free, total = self.allocator.num_free, self.allocator.num_pages
            assert free == total, f"{total - free} of {total} pages are lost"
            IDLE_CHECKS.inc()

    def _expire(self) -> None:
        now = self._clock()
        for ticket, (deadline, session) in list(self._reserved.items()):
            if deadline < now:
                del self._reserved[ticket]
                self.allocator.release(session.pages)
