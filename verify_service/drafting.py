"""Keeps drafts in step with the target: sends committed rows, collects the next proposals.

Losing a draft costs speed, never output: whatever goes wrong here leaves a sequence without
proposals, and it decodes plainly.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.errors import DraftUnavailable
from verify_service.draft_link import DraftLink
from verify_service.sequence import DraftSession, Sequence

RowsOf = Callable[[Sequence, int, int], Tensor]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A sequence's part of a message."""

    sequence: Sequence
    step: draft_pb2.SessionStep

    def is_answered_by(self, result: draft_pb2.SessionResult, vocab_size: int) -> bool:
        """Whether these are proposals that may be verified; the draft is not trusted."""
        proposals = result.proposals
        return (
            result.WhichOneof("answer") == "proposals"
            and proposals.draft_kv_len == self.step.rows_start + self.step.num_rows
            and len(proposals.ids) <= self.step.draft_tokens
            and all(0 <= i < vocab_size for i in proposals.ids)
        )


class Drafting:
    """Draft sessions of all sequences; one exchange per link and step."""

    def __init__(self, rows_of: RowsOf, vocab_size: int, timeout_s: float) -> None:
        self._rows_of, self._vocab_size, self._timeout_s = rows_of, vocab_size, timeout_s
        self._sessions = itertools.count(1)
        self._closing: dict[DraftLink, list[int]] = defaultdict(list)
        self._asked: dict[DraftLink, dict[int, _Asked]] = {}

    def begin(self, sequence: Sequence) -> None:
        """Gives a new sequence its draft session, if it is to be drafted for."""
        if sequence.request.draft:
            session = DraftSession(plan=sequence.request.draft, session=next(self._sessions))
            sequence.draft = session

    def end(self, sequence: Sequence) -> None:
        """Frees the draft's side of a sequence with the next message."""
        sequence.proposals = []
        if sequence.draft and sequence.draft.opened:
            self._closing[sequence.draft.plan.link].append(sequence.draft.session)
        sequence.draft = None

    def send(self, sequences: Iterable[Sequence]) -> None:
        """Ships the rows committed since the last step and asks for the next proposals.

        A waiting sequence has its session opened, before the ticket expires.
        """
        by_link: dict[DraftLink, list[Sequence]] = {link: [] for link in self._closing}
        for sequence in sequences:
            sequence.proposals = []
            if sequence.draft:
                by_link.setdefault(sequence.draft.plan.link, []).append(sequence)
        for link, members in by_link.items():
            closes = self._closing.pop(link, [])
            if link.alive:
                self._send_one(link, members, closes)
            else:
                _lose(members, "its stream ended")

    def receive(self) -> None:
        """Waits for every draft asked by `send`; sets the proposals that arrive."""
        pending, self._asked = self._asked, {}
        for link, asked in pending.items():
            began = time.monotonic_ns()
            try:
                answer = link.receive(self._timeout_s)
            except DraftUnavailable as error:
                _lose([item.sequence for item in asked.values()], str(error))
                continue
            waited = time.monotonic_ns() - began
            for item in asked.values():
                item.sequence.timings.draft_ns += waited
            for result in answer.results:
                if item_asked := asked.get(result.session):
                    self._take(item_asked, result)

    def _send_one(self, link: DraftLink, members: list[Sequence], closes: list[int]) -> None:
        request = draft_pb2.StepRequest(closes=closes)
        asked: dict[int, _Asked] = {}
        rows: list[Tensor] = []
        budget = link.max_rows
        for sequence in members:
            draft = sequence.draft
            assert draft is not None
            step = _next_step(sequence, draft, budget)
            if draft.opened and not step.num_rows and not step.HasField("current"):
                continue  # nothing to say: it waits, or its prompt does
            if not draft.opened:
                draft.opened = True
                request.opens.add(
                    session=draft.session, ticket=draft.plan.ticket, mode=draft.plan.mode
                )
            request.steps.append(step)
            asked[draft.session] = _Asked(sequence, step)
            if step.num_rows:
                rows.append(self._rows_of(sequence, draft.kv_len, draft.kv_len + step.num_rows))
            budget -= step.num_rows
        if asked or closes:
            self._asked[link] = asked
            link.send(request, torch.cat(rows) if rows else None)

    def _take(self, asked: _Asked, result: draft_pb2.SessionResult) -> None:
        """Keeps an answer to this very step; a bad one ends the sequence's drafting."""
        sequence = asked.sequence
        draft = sequence.draft
        not_opened = result.step == 0 and result.HasField("error")
        if draft is None or not (not_opened or result.step == asked.step.step):
            return
        if asked.is_answered_by(result, self._vocab_size):
            draft.kv_len = result.proposals.draft_kv_len
            sequence.proposals = list(result.proposals.ids)
            return
        log.warning("request %s goes on without a draft: %s", sequence.request.request_id, result)
        self.end(sequence)


def _next_step(sequence: Sequence, draft: DraftSession, max_rows: int) -> draft_pb2.SessionStep:
    """Rows the draft lacks, and the block to draft once it has them all.

    No more proposals than the request can still take beside the bonus token: the positions
    verified then never pass the end of the context.
    """
    # A preempted sequence has fewer rows than its draft until its positions have run again.
    count = max(0, min(sequence.kv_len - draft.kv_len, max_rows))
    draft.step += 1
    step = draft_pb2.SessionStep(
        session=draft.session, step=draft.step, rows_start=draft.kv_len, num_rows=count
    )
    left = sequence.request.max_tokens - sequence.num_generated
    wanted = min(draft.plan.draft_tokens, left - 1)
    if not sequence.in_prefill and draft.kv_len + count == sequence.kv_len and wanted > 0:
        step.current = sequence.tokens[-1]
        step.draft_tokens = wanted
    return step


def _lose(sequences: list[Sequence], reason: str) -> None:
    """Plain decoding from here on."""
    if sequences:
        log.warning("%s; %d requests go on without a draft", reason, len(sequences))
    for sequence in sequences:
        sequence.draft = None
