"""One message to a draft and what may answer it; verify_service.drafting makes and reads them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from domino_serve.v1 import draft_pb2
from verify_service.draft_link import DraftLink
from verify_service.row_spans import RowSpan
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


class Message:
    """To one draft while it is put together; `spans` say where its rows are."""

    def __init__(self, link: DraftLink, closes: Iterable[int] = ()) -> None:
        self.request = draft_pb2.StepRequest(closes=closes)
        self.asked: dict[int, Asked] = {}
        self.spans: list[RowSpan] = []
        self._link, self.budget = link, link.max_rows  # rows that it may still have

    def add(self, sequence: Sequence, draft: DraftSession, step: draft_pb2.SessionStep) -> None:
        """Unless there is nothing to say: it waits, or its prompt does. Opens the session first."""
        if draft.opened and not step.num_rows and not step.HasField("current"):
            return
        if not draft.opened:
            draft.opened = True
            self.request.opens.add(
                session=draft.session,
                ticket=draft.plan.ticket,
                mode=draft.plan.mode,
                context_id=self._link.context_id,
                request_id=sequence.request.request_id,
                traceparent=sequence.request.traceparent,
            )
        self.request.steps.append(step)
        self.asked[draft.session] = Asked(sequence, step)
        if step.num_rows:
            self.spans.append((sequence, draft.kv_len, draft.kv_len + step.num_rows))
        self.budget -= step.num_rows


def rows_step(draft: DraftSession, end: int, max_rows: int) -> draft_pb2.SessionStep:
    """Rows that the draft lacks of positions before `end`, nothing to draft."""
    # A preempted sequence has fewer rows than its draft until its positions have run again.
    count = max(0, min(end - draft.kv_len, max_rows))
    draft.step += 1
    return draft_pb2.SessionStep(
        session=draft.session, step=draft.step, rows_start=draft.kv_len, num_rows=count
    )


def next_step(
    sequence: Sequence, draft: DraftSession, max_rows: int, draft_tokens: int | None
) -> draft_pb2.SessionStep:
    """Rows the draft lacks, and the block to draft once it has them all."""
    step, asked = rows_step(draft, sequence.kv_len, max_rows), wanted(sequence, draft, draft_tokens)
    has_all = draft.kv_len + step.num_rows == sequence.kv_len
    if not sequence.in_prefill and has_all and asked:
        step.current = sequence.tokens[-1]
        step.draft_tokens = asked
    return step


def wanted(sequence: Sequence, draft: DraftSession, draft_tokens: int | None) -> int:
    """Proposals to ask for, `draft_tokens` at most.

    No more than the request can still take beside the bonus token: the positions verified then
    never pass the end of the context.
    """
    left = sequence.request.max_tokens - sequence.num_generated
    most = max(0, min(draft.plan.draft_tokens, left - 1))
    return most if draft_tokens is None else min(most, draft_tokens)
