"""A request while it runs: its tokens, its pages, what it owes the draft and what it reports."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from serving.errors import ServingError
from serving.statistics import count_step
from verify_service.accept import accept
from verify_service.acceptance_history import AcceptanceHistory
from verify_service.draft_link import DraftLink
from verify_service.sampling import SamplingParams
from verify_service.speculation import STEP_COUNTS

PLAIN: Final = (0, 0)  # proposed, accepted: a step of one token

Event = verify_pb2.VerifyChunk | verify_pb2.VerifyComplete | verify_pb2.BlockScore | ServingError


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWish:
    """The draft service, and what it is to do, whenever it has a seat for a request."""

    address: str
    mode: spec.Mode.ValueType
    draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """Where the proposals of a request come from."""

    link: DraftLink
    ticket: str
    mode: spec.Mode.ValueType
    draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validated request; `emit` is called from the engine's thread.

    keeps_rows: a draft may want its rows, now or later.
    """

    request_id: str
    prompt_ids: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    emit: Callable[[Event], None]
    draft: DraftPlan | None = None
    wish: DraftWish | None = None  # None: plain for good once it has no draft
    sampling: SamplingParams | None = None  # None: greedy
    min_tokens: int = 0
    chunk_stats: bool = False
    keeps_rows: bool = True
    traceparent: str = ""  # of the span that a draft's is part of

    def start(self) -> "Sequence":
        """What the engine runs."""
        return Sequence(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the target says at the last positions of a sequence's work.

    logprobs[j] is the log-probability of ids[j], id_logprobs[j] that of the work's own next id;
    both are empty unless the sequence wants them. Not usable: the logits are no numbers.
    """

    ids: list[int]
    usable: bool = True
    logprobs: list[float] = field(default_factory=list)
    id_logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DraftSession:
    """The draft's side of a sequence, as the verify service knows it.

    resting: no proposals are wanted for now, and the draft is sent nothing.
    """

    plan: DraftPlan
    session: int
    opened: bool = False
    resting: bool = False
    kv_len: int = 0
    step: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """Positions 0..kv_len-1 have target KV; the last token is `current` once the prompt has run."""

    request: Request
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    kv_len: int = 0
    proposals: list[int] = field(default_factory=list)
    draft: DraftSession | None = None
    projection: int | None = None  # that its rows are of; None: of none that a draft can use
    awaits_draft: bool = False  # does not run until its proposals are there: halves take turns
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    stats: spec.SpeculationStats = field(default_factory=spec.SpeculationStats)
    timings: spec.RequestTimings = field(default_factory=spec.RequestTimings)
    arrived_ns: int = field(default_factory=time.monotonic_ns)
    prompt_len: int = field(init=False)
    _sent_ns: int = field(init=False, default=0)
    _unsent: tuple[list[int], tuple[int, int] | None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        self.prompt_len = len(self.tokens)
        plan = self.request.draft
        self.stats.mode = plan.mode if plan else spec.MODE_AR
        self.stats.width = plan.draft_tokens + 1 if plan else 1

    @property
    def num_generated(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def prefill_end(self) -> int:
        """Positions to run before the next token is asked for.

        The whole prompt; after a preemption, the tokens emitted so far too, but the current one.
        """
        return len(self.tokens) - 1 if self.num_generated else self.prompt_len

    @property
    def in_prefill(self) -> bool:
        """Whether such positions are left."""
        known, prompt = len(self.tokens), self.prompt_len  # asked several times a step
        return self.kv_len < (known - 1 if known > prompt else prompt)

    def suits(self, projection: int) -> bool:
        """Whether rows so far, if there are any, are of that projection."""
        return not self.kv_len or self.projection == projection

    @property
    def pays_anew(self) -> bool:
        """Whether more tokens may come than positions have run: running these again for another
        draft's rows costs less than a plain step each."""
        return self.request.max_tokens - self.num_generated > self.kv_len

    @property
    def capacity(self) -> int:
        """Positions the sequence may ever write, rejected proposals included."""
        return self.prompt_len + self.request.max_tokens

    @property
    def sized_by(self) -> str:
        """The request's field that determines `capacity`, with the prompt."""
        return "max_tokens"

    def elapsed_ns(self) -> int:
        """Time since arrival."""
        return time.monotonic_ns() - self.arrived_ns

    @property
    def wants_logprobs(self) -> bool:
        """Whether `commit` needs log-probabilities."""
        return False

    def slots(self, start: int, end: int, page_size: int) -> list[int]:
        """Where its pages hold positions start..end-1: page * page_size + offset."""
        pages = self.pages
        return [pages[at // page_size] * page_size + at % page_size for at in range(start, end)]

    def next_ids(self) -> list[int]:
        """Ids to verify in the next step, `current` first; only once the prompt has run."""
        return [self.tokens[-1], *self.proposals]

    def commit(self, ids: list[int], chosen: Chosen) -> spec.FinishReason.ValueType:
        """Keeps what the target agrees with, for `send`; says why the request ends there, if so.

        The KV of rejected ids is overwritten by the next step.
        """
        if self.in_prefill:
            self.kv_len += len(ids)
            if not chosen.ids:
                return spec.FINISH_REASON_UNSPECIFIED
            self.timings.first_token_ns = self.elapsed_ns()
            return self._keep(chosen.ids, None)
        accepted = accept(ids[1:], chosen.ids)
        self.kv_len += accepted + 1
        self.history.add(len(ids) - 1, accepted)
        STEP_COUNTS.add(len(ids) - 1, accepted)
        return self._keep(chosen.ids[: accepted + 1], (len(ids) - 1, accepted))

    def is_due(self, interval_ns: int) -> bool:
        """Whether to `send` now: tokens of plain steps may wait for those after them, so long after
        the last message."""
        waits = self._unsent is not None and self._unsent[1] == PLAIN
        return not waits or time.monotonic_ns() - self._sent_ns >= interval_ns

    def send(self) -> None:
        """Emits what `commit` kept; best while the next pass runs on a device."""
        if self._unsent is None:
            return
        (kept, counts), self._unsent = self._unsent, None
        self._sent_ns = time.monotonic_ns()
        step = (
            spec.StepStats(proposed_tokens=counts[0], accepted_tokens=counts[1]) if counts else None
        )
        self.timings.total_ns = self.elapsed_ns()
        chunk = verify_pb2.VerifyChunk(token_ids=kept, step=step)
        if self.request.chunk_stats:
            chunk.MergeFrom(verify_pb2.VerifyChunk(speculation=self.stats, timings=self.timings))
        if step:
            count_step(self.stats, step, len(kept))
        self.request.emit(chunk)

    def _keep(
        self, choices: list[int], counts: tuple[int, int] | None
    ) -> spec.FinishReason.ValueType:
        """Appends tokens up to the first stop id or the cap. counts: proposed, accepted."""
        kept, reason = self._append(choices)
        if self._unsent and self._unsent[1] == counts == PLAIN:
            self._unsent[0].extend(kept)
        else:
            self.send()
            self._unsent = kept, counts
        return reason

    def _append(self, choices: list[int]) -> tuple[list[int], spec.FinishReason.ValueType]:
        """The tokens kept, and why the request ends with the last of them."""
        stop_ids, left = self.request.stop_ids, self.request.max_tokens - self.num_generated
        kept, reason = choices[:left], spec.FINISH_REASON_UNSPECIFIED
        if not stop_ids.isdisjoint(kept):
            end = next(count for count, token in enumerate(kept, 1) if token in stop_ids)
            kept, reason = kept[:end], spec.FINISH_REASON_STOP
        elif len(kept) == left:
            reason = spec.FINISH_REASON_LENGTH
        self.tokens += kept
        return kept, reason

    def complete(self, reason: spec.FinishReason.ValueType) -> verify_pb2.VerifyComplete:
        """The last message of the request, after `send`."""
        done = verify_pb2.VerifyComplete(
            finish_reason=reason,
            usage=spec.Usage(prompt_tokens=self.prompt_len, completion_tokens=self.num_generated),
            speculation=self.stats,
            timings=self.timings,
        )
        if reason == spec.FINISH_REASON_STOP:
            done.stop_token_id = self.tokens[-1]
        return done
