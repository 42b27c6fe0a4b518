"""A request while it runs: its tokens, its pages, what it owes the draft and what it reports."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from serving.errors import ServingError
from verify_service.draft_link import DraftLink

Event = verify_pb2.VerifyChunk | verify_pb2.VerifyComplete | ServingError


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlan:
    """Where the proposals of a request come from."""

    link: DraftLink
    ticket: str
    mode: spec.Mode.ValueType
    draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validated request; `emit` is called from the engine's thread."""

    request_id: str
    prompt_ids: list[int]
    max_tokens: int
    stop_ids: frozenset[int]
    emit: Callable[[Event], None]
    draft: DraftPlan | None = None


@dataclass(slots=True, kw_only=True)
class DraftSession:
    """The draft's side of a sequence, as the verify service knows it."""

    plan: DraftPlan
    session: int
    opened: bool = False
    kv_len: int = 0
    step: int = 0


@dataclass(slots=True)
class Sequence:
    """Positions 0..kv_len-1 have target KV; the last token is `current` once the prompt has run."""

    request: Request
    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    kv_len: int = 0
    proposals: list[int] = field(default_factory=list)
    draft: DraftSession | None = None
    stats: spec.SpeculationStats = field(default_factory=spec.SpeculationStats)
    timings: spec.RequestTimings = field(default_factory=spec.RequestTimings)
    arrived_ns: int = field(default_factory=time.monotonic_ns)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        plan = self.request.draft
        self.stats.mode = plan.mode if plan else spec.MODE_AR
        self.stats.width = plan.draft_tokens + 1 if plan else 1

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        """Tokens emitted so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def in_prompt(self) -> bool:
        """Whether prompt positions are still to run."""
        return self.kv_len < self.prompt_len

    @property
    def capacity(self) -> int:
        """Positions the sequence may ever write, rejected proposals included."""
        return self.prompt_len + self.request.max_tokens

    def elapsed_ns(self) -> int:
        """Time since arrival."""
        return time.monotonic_ns() - self.arrived_ns

    def emit_tokens(self, choices: list[int]) -> spec.FinishReason.ValueType:
        """Appends and sends tokens up to the first stop id or the cap; says why it ends there.

        Shortens `choices` in place to what was kept.
        """
        reason = spec.FINISH_REASON_UNSPECIFIED
        for kept, token in enumerate(choices, start=1):
            self.tokens.append(token)
            if token in self.request.stop_ids:
                reason = spec.FINISH_REASON_STOP
            elif self.num_generated == self.request.max_tokens:
                reason = spec.FINISH_REASON_LENGTH
            if reason != spec.FINISH_REASON_UNSPECIFIED:
                del choices[kept:]
                break
        self.request.emit(verify_pb2.VerifyChunk(token_ids=choices))
        return reason

    def count_step(self, emitted: int, proposed: int, accepted: int) -> None:
        """Adds one verify step to the statistics."""
        stats = self.stats
        stats.verify_steps += 1
        stats.plain_steps += proposed == 0
        stats.proposed_tokens += proposed
        stats.accepted_tokens += accepted
        stats.step_tokens += emitted
        histogram = stats.accepted_by_position
        histogram.extend([0] * (proposed - len(histogram)))
        for position in range(accepted):
            histogram[position] += 1

    def complete(self, reason: spec.FinishReason.ValueType) -> verify_pb2.VerifyComplete:
        """The last message of the request."""
        self.timings.total_ns = self.elapsed_ns()
        done = verify_pb2.VerifyComplete(
            finish_reason=reason,
            usage=spec.Usage(prompt_tokens=self.prompt_len, completion_tokens=self.num_generated),
            speculation=self.stats,
            timings=self.timings,
        )
        if reason == spec.FINISH_REASON_STOP:
            done.stop_token_id = self.tokens[-1]
        return done
