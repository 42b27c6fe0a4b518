"""One span a draft session: steps in, their sums when it ends; nothing while traces are off.

The spans' parents stand in the messages that open the sessions.
"""

from dataclasses import dataclass

from domino_serve.v1 import draft_pb2
from serving import trace


@dataclass(slots=True)
class _Session:
    span: trace.Span
    steps: int = 0
    rows: int = 0
    draft_tokens: int = 0

    def end(self) -> None:
        self.span.set(steps=self.steps, rows=self.rows, draft_tokens=self.draft_tokens)
        self.span.end()


class SessionTraces:
    """Of one stream; used by its handler's thread alone."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Session] = {}

    def add(self, request: draft_pb2.StepRequest, response: draft_pb2.StepResponse) -> None:
        """One exchange, once it is answered."""
        if not trace.are_on():
            return
        for opening in request.opens:
            self._end(opening.session)
            name = opening.request_id[:200]
            span = trace.Span("draft session", opening.traceparent, request_id=name)
            self._sessions[opening.session] = _Session(span)
        for step in request.steps:
            if session := self._sessions.get(step.session):
                session.steps += 1
                session.rows += step.num_rows
        for result in response.results:
            if session := self._sessions.get(result.session):
                session.draft_tokens += len(result.proposals.ids)
        for number in request.closes:
            self._end(number)

    def end(self) -> None:
        """The stream has ended, and with it its sessions."""
        for number in list(self._sessions):
            self._end(number)

    def _end(self, number: int) -> None:
        if session := self._sessions.pop(number, None):
            session.end()
