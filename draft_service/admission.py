"""Which steps of a message are run: those that pass their checks, each with its rows.

Called by draft_service.engine; the others are answered at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from domino_serve.v1 import draft_pb2
from draft_service.checks import Refusal, check_step, usable_rows
from draft_service.executor import Part
from draft_service.seats import Session
from serving.draft_config import DraftConfig
from serving.errors import BadRequest


@dataclass(slots=True)
class Work:
    """A step that passed its checks, its session and its rows in the message."""

    step: draft_pb2.SessionStep
    session: Session
    rows: slice

    def part(self) -> Part:
        """What the executor is to do for it."""
        step, session = self.step, self.session
        return Part(
            mode=session.mode,
            pages=session.pages,
            start=session.kv_len,
            rows=self.rows,
            current=step.current if step.HasField("current") else None,
            draft_tokens=step.draft_tokens,
        )


def check_rows(request: draft_pb2.StepRequest, rows: Tensor | None, most: int) -> None:
    """Raises BadRequest for a message that cannot be taken apart."""
    expected = sum(_num_rows(step) for step in request.steps)
    actual = 0 if rows is None else len(rows)
    if expected != actual:
        raise BadRequest("rows", f"has {actual} rows, the steps say {expected}")
    if actual > most:
        raise BadRequest("rows", f"has {actual} rows, {most} at most in one message")


def admitted(
    sessions: Mapping[int, Session],
    request: draft_pb2.StepRequest,
    all_rows: Tensor | None,
    config: DraftConfig,
    response: draft_pb2.StepResponse,
    *,
    unseen: bool = False,
) -> list[Work]:
    """Steps that pass their checks; what the others are answered goes into the response.

    unseen: the device may still make the rows; the executor leaves out what are no numbers.
    """
    work: list[Work] = []
    usable = [] if all_rows is None or unseen else usable_rows(all_rows)
    taken: set[int] = set()
    first = 0
    for step in request.steps:
        rows = slice(first, first + _num_rows(step))
        first, number = rows.stop, step.session
        session = sessions.get(number)
        if session and session.answers_again(step):
            response.results.append(session.last_result)
            continue
        try:
            if number in taken:
                raise Refusal(draft_pb2.SESSION_ERROR_REASON_INVALID, "session")
            if not all(usable[rows]):
                raise Refusal(draft_pb2.SESSION_ERROR_REASON_INVALID, "rows")
            taken.add(number)
            work.append(Work(step, check_step(session, step, config), rows))
        except Refusal as refused:
            result = response.results.add(session=number, error=refused.message())
            result.step = step.step
    return work


def _num_rows(step: draft_pb2.SessionStep) -> int:
    """Rows of this step in the message; a count below zero is refused to its session alone."""
    return max(step.num_rows, 0)
