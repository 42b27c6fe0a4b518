"""One message to a draft and what may answer it; verify_service.drafting makes and reads them."""

import time
from dataclasses import dataclass, field
from typing import Final

from domino_serve.v1 import draft_pb2
from verify_service.sequence import DraftSession, Sequence

# Errors that a session opened anew would not meet again.
WORTH_ANOTHER_SEAT: Final = {
    draft_pb2.SESSION_ERROR_REASON_UNKNOWN_SESSION,
    draft_pb2.SESSION_ERROR_REASON_TICKET,
    draft_pb2.SESSION_ERROR_REASON_CONTEXT_GAP,
    draft_pb2.SESSION_ERROR_REASON_STALE,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A sequence's part of a message."""

    sequence: Sequence
    step: draft_pb2.SessionStep

    def proposals_of(self, result: draft_pb2.SessionResult, vocab_size: int) -> list[int] | None:
        """Those that may be verified, None where it is no answer; the draft is not trusted."""
        if not result.HasField("proposals"):
            return None
        proposals, step = result.proposals, self.step
        ids = list(proposals.ids)
        fits = (
            proposals.draft_kv_len == step.rows_start + step.num_rows
            and len(ids) <= step.draft_tokens
            and (not ids or 0 <= min(ids) <= max(ids) < vocab_size)
        )
        return ids if fits else None


@dataclass(slots=True)
class Exchange:
    """A message that its draft has not answered yet; `misses` steps have gone on without."""

    asked: dict[int, Asked]
    awaited: bool
    sent_at: float = field(default_factory=time.monotonic)
    misses: int = 0

    def is_late(self, step_s: float) -> bool:
        """Whether it took longer than a step may wait, or than a step where none waited."""
        allowed = 0 if self.awaited else 1
        return self.misses > allowed and time.monotonic() - self.sent_at > step_s


def next_step(
    sequence: Sequence, draft: DraftSession, max_rows: int, draft_tokens: int | None
) -> draft_pb2.SessionStep:
    """Rows the draft lacks, and the block to draft once it has them all."""
    # A preempted sequence has fewer rows than its draft until its positions have run again.
    count = max(0, min(sequence.kv_len - draft.kv_len, max_rows))
    draft.step += 1
    step = draft_pb2.SessionStep(
        session=draft.session, step=draft.step, rows_start=draft.kv_len, num_rows=count
    )
    asked = wanted(sequence, draft, draft_tokens)
    if not sequence.in_prefill and draft.kv_len + count == sequence.kv_len and asked > 0:
        step.current = sequence.tokens[-1]
        step.draft_tokens = asked
    return step


def wanted(sequence: Sequence, draft: DraftSession, draft_tokens: int | None) -> int:
    """Proposals to ask for, `draft_tokens` at most.

    No more than the request can still take beside the bonus token: the positions verified then
    never pass the end of the context.
    """
    left = sequence.request.max_tokens - sequence.num_generated
    most = min(draft.plan.draft_tokens, left - 1)
    return most if draft_tokens is None else min(most, draft_tokens)
