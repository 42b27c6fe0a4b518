"""Requests through an engine and a draft in the same process; the times of its full steps out.

Runs on any executor. A step is full when every request decodes in it, and drafts where it should.
"""

import random
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from domino_cli.local_link import LocalDraftLink
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from draft_service.engine import DraftEngine
from draft_service.executor import StepExecutor
from draft_service.seats import Seats, Session
from serving.compute_thread import ComputeThread
from verify_service.drafting import Drafting
from verify_service.engine import Engine
from verify_service.executor import Executor
from verify_service.scheduler import Scheduler
from verify_service.sequence import DraftPlan, Event, Request, Sequence
from verify_service.synthetic import SyntheticAcceptance, parse_rates
from verify_service.timeline import Step
from verify_service.width_policy import WidthPolicy

PREFILL = 4096  # prompt positions a step
MAX_ROWS = 4096  # of a message to the draft
WAIT_S = 600.0
# The draft's own times lie within the wait; a graph's cannot be told apart and is the backbone's.
LAPS = ("plan", "verify", "commit", "send", "wait", "draft_append", "draft_backbone")
COMPUTE = ComputeThread("pair-steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """`concurrency` requests at once of `prompt` random ids, `new` tokens each.

    width: positions verified a step, 1 without a draft. acceptance: as the verify service's option
    takes it. skip_prompt: the KV of the prompt, the draft's too, is whatever the pages hold, which
    costs the same.
    """

    concurrency: int
    prompt: int
    new: int
    width: int = 1
    mode: spec.Mode.ValueType = spec.MODE_DOMINO
    acceptance: str | None = None
    skip_prompt: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """ms: median from a full step's begin to the next one's. tokens: of a request, a full step.

    tok_s: all tokens of full steps over their time; expected_tok_s: with what the acceptance gives
    on average at each step's width, so without its noise. laps: median ms of each part.
    """

    steps: int
    ms: float
    tokens: float
    tok_s: float
    expected_tok_s: float
    laps: dict[str, float]


class Pair:
    """An executor of the target and, where there is one, the draft's."""

    def __init__(
        self,
        verify: Executor,
        draft: StepExecutor | None,
        *,
        vocab: int,
        pages: int,
        page_size: int,
        draft_pages: int = 0,
    ) -> None:
        """pages: of the target's KV; draft_pages: of the draft's."""
        self._verify, self._draft, self.vocab = verify, draft, vocab
        self.costs = verify.costs() if draft else None  # of the target's steps
        self._pages, self._page_size, self._draft_pages = pages, page_size, draft_pages

    def run(self, load: Load, widths: WidthPolicy | None = None) -> Times:
        """Answers the load by an engine of its own."""
        engine = self.engine(load, widths)
        ends = Ends(load.concurrency)
        for request in self._requests(load, ends.emit):
            engine.submit(request)
        engine.start(compute=COMPUTE)  # now, so that the first step has them all
        try:
            ends.wait()
        finally:
            engine.stop()
        return times(engine.timeline.steps, load, any_width=widths is not None)

    def engine(self, load: Load, widths: WidthPolicy | None = None) -> Engine:
        """Not started yet."""
        synthetic = None
        if load.acceptance and load.width > 1:
            rates = parse_rates(load.acceptance, load.width - 1)
            synthetic = SyntheticAcceptance(rates, self.vocab)
        scheduler = Scheduler(
            pages=self._pages,
            page_size=self._page_size,
            max_sequences=load.concurrency,
            prefill_tokens=PREFILL,
        )
        kind = ContinuedDrafting if load.skip_prompt else Drafting
        drafting = kind(self._verify.rows, self.vocab, step_s=WAIT_S, timeout_s=WAIT_S)
        return Engine(
            self._verify, scheduler, drafting, max_waiting=0, widths=widths, synthetic=synthetic
        )

    def _requests(self, load: Load, emit: Callable[[Event], None]) -> list[Request]:
        draw, plans = random.Random(load.concurrency), self._plans(load)
        kind = Continued if load.skip_prompt else Request
        return [
            kind(
                request_id=str(i),
                prompt_ids=[draw.randrange(self.vocab) for _ in range(load.prompt)],
                max_tokens=load.new,
                stop_ids=frozenset(),
                emit=emit,
                draft=plan,
            )
            for i, plan in enumerate(plans)
        ]

    def _plans(self, load: Load) -> Seq[DraftPlan | None]:
        if load.width == 1:
            return [None] * load.concurrency
        link = self.link(load, sessions=load.concurrency)
        return [plan(link, load) for _ in range(load.concurrency)]

    def link(self, load: Load, *, sessions: int) -> LocalDraftLink:
        """To a draft with so many seats."""
        assert self._draft is not None, "drafting needs a draft"
        seats = (ContinuedSeats if load.skip_prompt else Seats)(
            pages=self._draft_pages,
            page_size=self._page_size,
            max_sessions=sessions,
            ttl_s=WAIT_S,
        )
        if isinstance(seats, ContinuedSeats):
            seats.positions = load.prompt - 1
        engine = DraftEngine(self._draft, seats, max_rows=MAX_ROWS)
        return LocalDraftLink(engine, MAX_ROWS)


def plan(link: LocalDraftLink, load: Load) -> DraftPlan:
    """For one request of the load; takes a seat."""
    ticket = link.reserve(load.mode, load.prompt + load.new)
    return DraftPlan(link=link, ticket=ticket, mode=load.mode, draft_tokens=load.width - 1)


class Continued(Request):
    """A request whose prompt has run, but for its last position."""

    def start(self) -> Sequence:
        sequence = Sequence(self)
        sequence.kv_len = sequence.prompt_len - 1
        sequence.projection = self.draft.link.projection if self.draft else None
        return sequence


class ContinuedDrafting(Drafting):
    """Takes the draft to have the rows of every position that has run."""

    def begin(self, sequence: Sequence, plan: DraftPlan | None) -> None:
        super().begin(sequence, plan)
        if sequence.draft:
            sequence.draft.kv_len = sequence.kv_len


class ContinuedSeats(Seats):
    """The draft's side of it; positions: of the prompts but for the last."""

    positions = 0

    def open(self, ticket: str) -> Session | None:
        session = super().open(ticket)
        if session:
            session.kv_len = self.positions
        return session


def times(steps: Seq[Step], load: Load, *, any_width: bool = False, halves: bool = False) -> Times:
    """Of the full steps that follow each other; raises ValueError without any.

    any_width: a policy chose it. halves: steps of half of the requests are full too.
    """
    fewest = load.concurrency // 2 if halves else load.concurrency

    def is_full(step: Step) -> bool:
        decoding = fewest <= step.sequences <= load.concurrency and not step.prompt_positions
        return decoding and (any_width or step.positions == step.sequences * load.width)

    pairs = [(a, b) for a, b in pairwise(steps) if is_full(a) and is_full(b)]
    if not pairs:
        raise ValueError(f"no full steps of {load}: take more new tokens")
    spans = [b.began_ns - a.began_ns for a, b in pairs]
    tokens = sum(a.tokens for a, _ in pairs)
    return Times(
        steps=len(pairs),
        ms=median(spans) / 1e6,
        tokens=tokens / sum(a.sequences for a, _ in pairs),
        tok_s=tokens / sum(spans) * 1e9,
        expected_tok_s=sum(_expected(a, load) for a, _ in pairs) / sum(spans) * 1e9,
        laps={name: median(getattr(a, f"{name}_ns") for a, _ in pairs) / 1e6 for name in LAPS},
    )


def _expected(step: Step, load: Load) -> float:
    """Tokens that a step of this width gives on average."""
    width = step.positions // step.sequences
    if width == 1 or not load.acceptance:
        return float(step.tokens)
    return step.sequences * (1 + sum(parse_rates(load.acceptance, load.width - 1)[: width - 1]))


class Ends:
    """Waits for the last events of so many requests; tokens wake nobody: they are no cycle's."""

    def __init__(self, count: int) -> None:
        self._left, self._done = count, threading.Event()
        self._error: Exception | None = None

    def emit(self, event: Event) -> None:
        if isinstance(event, verify_pb2.VerifyChunk):
            return
        self._error = event if isinstance(event, Exception) else self._error
        self._left -= 1
        if not self._left:
            self._done.set()

    def wait(self) -> None:
        """Raises the error of one that failed."""
        if not self._done.wait(WAIT_S):
            raise TimeoutError(f"{self._left} requests have not ended")
        if self._error:
            raise self._error
