"""Keeps drafts in step with the target: sends committed rows, collects the next proposals.

Losing a draft costs speed, never output: whatever goes wrong here leaves a sequence without
proposals, and it decodes plainly.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.errors import DraftUnavailable
from verify_service.draft_link import DraftLink
from verify_service.sequence import DraftSession, Sequence

RowsOf = Callable[[Sequence, int, int], Tensor]

log = logging.getLogger(__name__)


class Drafting:
    """Draft sessions of all sequences; one exchange per link and step."""

    def __init__(self, rows_of: RowsOf, vocab_size: int, timeout_s: float) -> None:
        self._rows_of, self._vocab_size, self._timeout_s = rows_of, vocab_size, timeout_s
        self._sessions = itertools.count(1)
        self._closing: dict[DraftLink, list[int]] = defaultdict(list)
        self._asked: dict[DraftLink, dict[int, Sequence]] = {}

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
        """Ships the rows committed since the last step and asks for the next proposals."""
        by_link: dict[DraftLink, list[Sequence]] = {link: [] for link in self._closing}
        for sequence in sequences:
            sequence.proposals = []
            if sequence.draft:
                by_link.setdefault(sequence.draft.plan.link, []).append(sequence)
        for link, members in by_link.items():
            self._send_one(link, members)

    def receive(self) -> None:
        """Waits for every draft asked by `send`; sets the proposals that arrive."""
        for link, asked in self._asked.items():
            began = time.monotonic_ns()
            try:
                answer = link.receive(self._timeout_s)
            except DraftUnavailable as error:
                log.warning("%s; %d requests go on without a draft", error, len(asked))
                for sequence in asked.values():
                    sequence.draft = None
                continue
            waited = time.monotonic_ns() - began
            for sequence in asked.values():
                sequence.timings.draft_ns += waited
            for result in answer.results:
                if result.session in asked:
                    self._take(asked[result.session], result)
        self._asked = {}

    def _send_one(self, link: DraftLink, members: list[Sequence]) -> None:
        request = draft_pb2.StepRequest(closes=self._closing.pop(link, ()))
        if not link.alive:
            for sequence in members:
                sequence.draft = None
            return
        asked: dict[int, Sequence] = {}
        rows: list[Tensor] = []
        budget = link.max_rows
        for sequence in members:
            draft = sequence.draft
            assert draft is not None
            if not draft.opened:
                draft.opened = True
                request.opens.add(
                    session=draft.session, ticket=draft.plan.ticket, mode=draft.plan.mode
                )
            count = min(sequence.kv_len - draft.kv_len, budget)
            budget -= count
            if count:
                rows.append(self._rows_of(sequence, draft.kv_len, draft.kv_len + count))
            request.steps.append(_step(sequence, draft, count))
            asked[draft.session] = sequence
        self._asked[link] = asked
        link.send(request, torch.cat(rows) if rows else None)

    def _take(self, sequence: Sequence, result: draft_pb2.SessionResult) -> None:
        """Accepts an answer for this very step; anything else ends the sequence's drafting."""
        draft = sequence.draft
        if draft is None or result.step != draft.step:
            return
        proposals = result.proposals
        in_vocabulary = all(0 <= i < self._vocab_size for i in proposals.ids)
        if result.WhichOneof("answer") == "proposals" and in_vocabulary:
            draft.kv_len = int(proposals.draft_kv_len)
            sequence.proposals = list(proposals.ids[: draft.plan.draft_tokens])
            return
        log.warning("request %s goes on without a draft: %s", sequence.request.request_id, result)
        self.end(sequence)


def _step(sequence: Sequence, draft: DraftSession, rows: int) -> draft_pb2.SessionStep:
    draft.step += 1
    step = draft_pb2.SessionStep(
        session=draft.session, step=draft.step, rows_start=draft.kv_len, num_rows=rows
    )
    if not sequence.in_prompt and draft.kv_len + rows == sequence.kv_len:
        step.current = sequence.tokens[-1]
        step.draft_tokens = draft.plan.draft_tokens
    return step
