"""What a step must satisfy before the draft touches its KV; a refusal concerns one session."""

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from draft_service.seats import Session
from serving.draft_config import DraftConfig

_LARGEST = 2**63 - 1  # of the wire's field; steps and sessions may be larger


class Refusal(Exception):
    """A session cannot take a step; the stream goes on."""

    def __init__(
        self,
        reason: draft_pb2.SessionErrorReason.ValueType,
        field: str,
        expected: int = 0,
        actual: int = 0,
    ) -> None:
        super().__init__(f"{field}: expected {expected}, got {actual}")
        self._error = draft_pb2.SessionError(
            reason=reason,
            field=field,
            expected=min(expected, _LARGEST),
            actual=min(actual, _LARGEST),
        )

    def message(self) -> draft_pb2.SessionError:
        """The wire form."""
        return self._error


def usable_rows(rows: Tensor) -> list[bool]:
    """Which rows [n, hidden] are all numbers; NaN in a page would reach the page's next session.

    A sum is a number only where every value is: it is read once, which takes a tenth of the time of
    looking at each. A sum of numbers can be none too; then each is looked at.
    """
    sums = rows.sum(-1, dtype=torch.float32 if rows.dtype == torch.float16 else rows.dtype)
    found: list[bool] = sums.isfinite().tolist()
    return found if all(found) else rows.isfinite().all(-1).tolist()


def check_step(
    session: Session | None, step: draft_pb2.SessionStep, config: DraftConfig
) -> Session:
    """The session, or Refusal."""
    if session is None:
        raise Refusal(draft_pb2.SESSION_ERROR_REASON_UNKNOWN_SESSION, "session")
    if step.step < session.step:
        stale = draft_pb2.SESSION_ERROR_REASON_STALE
        raise Refusal(stale, "step", session.step, step.step)
    if step.rows_start != session.kv_len:
        gap = draft_pb2.SESSION_ERROR_REASON_CONTEXT_GAP
        raise Refusal(gap, "rows_start", session.kv_len, step.rows_start)
    _check_ranges(step, config)
    end = session.kv_len + step.num_rows
    end += config.block_size if step.HasField("current") else 0
    if end > session.max_positions:
        capacity = draft_pb2.SESSION_ERROR_REASON_CAPACITY
        raise Refusal(capacity, "positions", session.max_positions, end)
    return session


def _check_ranges(step: draft_pb2.SessionStep, config: DraftConfig) -> None:
    invalid = draft_pb2.SESSION_ERROR_REASON_INVALID
    if step.num_rows < 0:
        raise Refusal(invalid, "num_rows", 0, step.num_rows)
    if not step.HasField("current"):
        return
    if not 0 <= step.current < config.vocab_size:
        raise Refusal(invalid, "current", config.vocab_size - 1, step.current)
    if not 1 <= step.draft_tokens <= config.max_draft_tokens:
        raise Refusal(invalid, "draft_tokens", config.max_draft_tokens, step.draft_tokens)
