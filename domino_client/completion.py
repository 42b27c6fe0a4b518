"""What a client gets, as plain dataclasses; domino_client.parse makes them from messages."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """What one verify step committed, or several plain ones; text lags behind while a character is
    incomplete, or a stop string may be coming."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """What speculation did; accepted_by_position[j] counts steps that accepted more than j."""

    mode: str
    width: int
    verify_steps: int
    plain_steps: int
    proposed_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    step_tokens: int

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step, the bonus token included; 1.0 is plain decoding."""
        return self.step_tokens / self.verify_steps if self.verify_steps else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted per proposed draft token."""
        return self.accepted_tokens / self.proposed_tokens if self.proposed_tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Nanoseconds on the verify service's clock, from the request's arrival there."""

    queue_ns: int
    first_token_ns: int
    total_ns: int
    verify_ns: int
    draft_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How tokens are drawn; top_k 0, top_p 1 and min_p 0 leave all in. seed: None for defaults."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """token_ids include a final stop id or the tokens of a stop string, text does not.

    stop: the stop string that ended it. sampling: None when greedy.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_token_id: int | None
    stop: str | None = None
    prompt_tokens: int
    completion_tokens: int
    speculation: Speculation
    timings: Timings
    sampling: Sampling | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What the router serves, its limits and defaults.

    draft and draft_hash are empty and block_size is 0 without a draft; default_sampling is None
    when requests that name no temperature are greedy. synthetic_acceptance: not empty when a
    benchmark pretends acceptance, and answers are not the target's.
    """

    target: str
    draft: str
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    modes: tuple[str, ...]
    default_mode: str
    max_draft_tokens: int
    default_draft_tokens: int
    block_size: int
    dtype: str
    target_hash: str
    draft_hash: str
    max_sequences: int
    max_requests: int
    default_max_tokens: int
    default_sampling: Sampling | None
    has_chat_template: bool
    max_stop_strings: int
    max_stop_chars: int
    synthetic_acceptance: str = ""
