"""Keeps drafts in step with the target: sends committed rows, collects the next proposals.

Losing a draft costs speed, never output: whatever goes wrong here leaves a sequence without
proposals, and it decodes plainly.
"""

import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.contract import QUIET_S
from serving.errors import DraftUnavailable
from serving.log import about
from serving.transport.plane import IN_PROCESS
from verify_service.draft_exchange import (
    WORTH_ANOTHER_SEAT,
    Asked,
    Exchange,
    Message,
    next_step,
)
from verify_service.draft_link import DraftLink
from verify_service.early_drafts import EarlyDrafts
from verify_service.early_rows import EarlyRows
from verify_service.metrics import DRAFT_LOST, STALE
from verify_service.row_spans import RowSpan
from verify_service.sequence import DraftPlan, DraftSession, Sequence

RowsOf = Callable[[list[RowSpan]], Tensor]

log = logging.getLogger(__name__)


class Drafting:
    """Draft sessions of all sequences; at most one exchange per link and step.

    A draft that does not answer within `step_s` is sent nothing more, and its sequences decode
    plainly, until the answer is there: its proposals are for an old prefix then and dropped. From
    then on no step waits for it, until it answers in time again. One that owes an answer for
    `timeout_s` is given up.
    """

    def __init__(
        self, rows_of: RowsOf, vocab_size: int, *, step_s: float, timeout_s: float
    ) -> None:
        self._rows_of, self._vocab_size = rows_of, vocab_size
        self._step_s, self._timeout_s = min(step_s, timeout_s), timeout_s
        self._sessions = itertools.count(1)
        self._closing: dict[DraftLink, list[int]] = defaultdict(list)
        self._exchanges: dict[DraftLink, Exchange] = {}
        self._slow: set[DraftLink] = set()
        self.early = EarlyDrafts(EarlyRows(rows_of, self._take, self._exchanges))
        self._said_at: WeakKeyDictionary[DraftLink, float] = WeakKeyDictionary()
        self.num_faults = 0  # of our own; none is the rule
        # Told of sequences that lost their draft, or had none, though they wish for one.
        self.want: Callable[[Sequence], None] = lambda sequence: None

    @property
    def is_owed(self) -> bool:
        """Whether answers are outstanding; `receive` looks for them."""
        return bool(self._exchanges)

    @property
    def is_at_work(self) -> bool:
        """Whether answers are being made; a draft in this process mostly begins in `receive`."""
        return self.early.is_at_work or any(link.plane != IN_PROCESS for link in self._exchanges)

    def asked(self) -> list[Sequence]:
        """Whose proposals the next `receive` waits for."""
        open_ones = [e for e in self._exchanges.values() if e.awaited and not e.misses]
        return [item.sequence for exchange in open_ones for item in exchange.asked.values()]

    def begin(self, sequence: Sequence, plan: DraftPlan | None) -> None:
        """Gives a sequence its draft session, or tells `want` that it is to get one later."""
        if plan is None:
            self._miss(sequence)
        elif sequence.draft is None and sequence.suits(plan.link.projection):
            sequence.projection = plan.link.projection
            sequence.draft = DraftSession(plan=plan, session=next(self._sessions))
            sequence.stats.mode, sequence.stats.width = plan.mode, plan.draft_tokens + 1

    def end(self, sequence: Sequence) -> None:
        """Frees the draft's side of a sequence with the next message."""
        sequence.proposals = []
        if sequence.draft and sequence.draft.opened:
            self._closing[sequence.draft.plan.link].append(sequence.draft.session)
        sequence.draft = None

    def send(
        self,
        sequences: Iterable[Sequence],
        draft_tokens: int | None = None,
        *,
        only_rows: bool = False,
    ) -> None:
        """Ships the rows committed since the last step and asks for the next proposals.

        A waiting sequence has its session opened, before the ticket expires. draft_tokens: no more
        than these; at 0 the rows stay here until proposals are wanted again. only_rows: they are
        asked for with the next call.
        """
        by_link: dict[DraftLink, list[Sequence]] = {link: [] for link in self._closing}
        for sequence in sequences:
            sequence.proposals = []
            if sequence.draft:
                by_link.setdefault(sequence.draft.plan.link, []).append(sequence)
        for link, members in by_link.items():
            if not link.alive:
                link.close()  # nobody else frees what it holds of a draft in this process
                self._closing.pop(link, None)
                self._slow.discard(link)
                self._lose(link, members, "its stream ended")
            elif link not in self._exchanges:
                self._send_one(link, members, draft_tokens, only_rows)

    def receive(self) -> list[draft_pb2.DraftTimings]:
        """Waits for every draft asked by `send`; sets the proposals that arrive in time.

        The answers' timings: where each draft's time went.
        """
        timings: list[draft_pb2.DraftTimings] = []
        for link, exchange in list(self._exchanges.items()):
            began = time.monotonic_ns()
            try:
                wait = exchange.awaited and not exchange.misses
                answer = link.receive(self._step_s if wait else 0)
            except DraftUnavailable as error:
                self._give_up(link, str(error))
                continue
            waited = time.monotonic_ns() - began
            for item in exchange.asked.values():
                item.sequence.timings.draft_ns += waited
            if answer is None:
                self._go_on_without(link, exchange)
            else:
                self._take_all(link, answer)
                timings.append(answer.timings)
        return timings

    def abandon(self, sequences: Iterable[Sequence]) -> None:
        """After a fault of our own no draft is known to be in step: all go on plainly."""
        self.num_faults += 1
        for sequence in sequences:
            sequence.proposals = []
            if sequence.draft:
                sequence.draft.plan.link.close()
                sequence.draft = None
                DRAFT_LOST.inc("fault")
        for link in {*self._exchanges, *self._closing}:
            link.close()
        self._exchanges.clear()
        self._closing.clear()
        self._slow.clear()

    def _go_on_without(self, link: DraftLink, exchange: Exchange) -> None:
        if exchange.awaited and not exchange.misses:
            log.warning(
                "a draft did not answer within %g s; plain steps until it does", self._step_s
            )
        exchange.misses += 1
        if time.monotonic() - exchange.sent_at >= self._timeout_s:
            self._give_up(link, f"no answer within {self._timeout_s:g} s")

    def _give_up(self, link: DraftLink, reason: str) -> None:
        link.close()
        self._slow.discard(link)
        asked = self._exchanges.pop(link).asked.values()
        self._lose(link, [item.sequence for item in asked], reason)

    def _take_all(self, link: DraftLink, answer: draft_pb2.StepResponse) -> None:
        exchange = self._exchanges.pop(link)
        late = exchange.is_late(self._step_s)
        link.late_answers += late
        (self._slow.add if late else self._slow.discard)(link)
        for result in answer.results:
            if asked := exchange.asked.get(result.session):
                self._take(asked, result)
                if exchange.misses:
                    STALE.inc(by=bool(asked.sequence.proposals))
                    asked.sequence.proposals = []

    def _send_one(
        self,
        link: DraftLink,
        members: list[Sequence],
        draft_tokens: int | None,
        only_rows: bool,
    ) -> None:
        closes = self._closing.pop(link, [])
        message = Message(link, closes)
        for sequence in members:
            draft = sequence.draft
            assert draft is not None
            if draft_tokens == 0 and draft.resting:
                continue
            draft.resting = draft_tokens == 0 and draft.opened and not sequence.in_prefill
            if not draft.resting:
                asked = 0 if only_rows else draft_tokens
                message.add(sequence, draft, next_step(sequence, draft, message.budget, asked))
        now = time.monotonic()
        if message.asked or closes or now - self._said_at.get(link, now) > QUIET_S:
            if not self.early.go_on(link, message.request):
                spans = message.spans
                link.send(message.request, self._rows_of(spans) if spans else None)
            self._said_at[link] = now
            self._exchanges[link] = Exchange(message.asked, awaited=link not in self._slow)

    def _take(self, asked: Asked, result: draft_pb2.SessionResult) -> None:
        """Keeps an answer to this very step; a bad one ends the sequence's session."""
        sequence = asked.sequence
        draft = sequence.draft
        not_opened = result.step == 0 and result.HasField("error")
        if draft is None or not (not_opened or result.step == asked.step.step):
            return
        ids = asked.proposals_of(result, self._vocab_size)
        if ids is not None:
            draft.kv_len = result.proposals.draft_kv_len
            sequence.proposals = ids
            return
        name = sequence.request.request_id
        why = result.error if result.HasField("error") else "its proposals do not fit"
        log.warning("request %s goes on without a draft: %.300s", name, why, extra=about(name))
        if not_opened and result.error.reason == draft_pb2.SESSION_ERROR_REASON_STALE:
            draft.plan.link.close()  # it leads to another draft than the handshake was made with
        DRAFT_LOST.inc("refused")
        self.end(sequence)
        if result.error.reason in WORTH_ANOTHER_SEAT:
            self._miss(sequence)

    def _lose(self, link: DraftLink, sequences: list[Sequence], reason: str) -> None:
        """Plain decoding until another seat is found; who ended or moved stays as is."""
        lost = [s for s in sequences if s.draft and s.draft.plan.link is link]
        if lost:
            log.warning("%s; %d requests go on without a draft", reason, len(lost))
            DRAFT_LOST.inc("link", by=len(lost))
        for sequence in lost:
            sequence.draft = None
            self._miss(sequence)

    def _miss(self, sequence: Sequence) -> None:
        if sequence.request.wish:
            self.want(sequence)
