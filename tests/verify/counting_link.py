"""A draft that counts as the target does, checks what it is sent, and errs where a test says so."""

import threading
from collections.abc import Callable

from torch import Tensor

from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.transport.plane import IN_PROCESS
from verify_service.sequence import DraftPlan

Spoil = Callable[[draft_pb2.StepResponse], None]


class CountingLink:
    """Right proposals; `spoil` may change each answer, or raise."""

    def __init__(self, spoil: Spoil = lambda answer: None, *, max_rows: int = 64) -> None:
        self.alive, self.max_rows = True, max_rows
        self.context_id, self.late_answers, self.projection = 77, 0, 0
        self.plane = IN_PROCESS
        self.answers = threading.Event()  # clear it, and answers are late
        self.answers.set()
        self.requests: list[draft_pb2.StepRequest] = []
        self.rows: dict[int, list[int]] = {}  # ids whose rows arrived, by session
        self.closed: list[int] = []
        self._spoil = spoil
        self._unanswered = False
        self.waits: list[float] = []  # how long each answer was waited for

    def plan(self, draft_tokens: int = 7) -> DraftPlan:
        """A request's place here."""
        return DraftPlan(
            link=self, ticket="ticket", mode=spec.MODE_DOMINO, draft_tokens=draft_tokens
        )

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        assert self.alive, "nothing is sent to a dead draft"
        assert not self._unanswered, "strictly in turn"
        self.requests.append(request)
        self._unanswered = True
        ids = [] if rows is None else [int(row[0]) for row in rows]
        assert len(ids) == sum(step.num_rows for step in request.steps) <= self.max_rows
        for opening in request.opens:
            assert opening.session not in self.rows, "session numbers are new"
            assert opening.context_id == self.context_id
            self.rows[opening.session] = []
        for step in request.steps:
            assert step.session not in self.closed
            known = self.rows[step.session]
            assert step.rows_start == len(known), "rows are contiguous"
            known.extend(ids[: step.num_rows])
            del ids[: step.num_rows]
        self.closed.extend(request.closes)

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse | None:
        assert self._unanswered, "nobody waits for what was never asked"
        self.waits.append(timeout_s)
        if not self.answers.is_set():
            return None
        self._unanswered = False
        answer = draft_pb2.StepResponse()
        for step in self.requests[-1].steps:
            result = answer.results.add(session=step.session, step=step.step)
            result.proposals.draft_kv_len = len(self.rows[step.session])
            if step.HasField("current"):
                first = step.current + 1
                result.proposals.ids.extend(range(first, first + step.draft_tokens))
        self._spoil(answer)
        return answer

    def close(self) -> None:
        self.alive = False

    @property
    def open_sessions(self) -> set[int]:
        """Sessions opened and not closed."""
        return self.rows.keys() - set(self.closed)
