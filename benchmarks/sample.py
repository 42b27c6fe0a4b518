"""One answer of one arm, as measured, and the arithmetic over many of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A user's turn; `index` is its place in the workload."""

    workload: str
    index: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """token_ids: a final stop id included. Times in seconds from sending the request.

    The counts of speculation stay 0 for arms that do not verify. attempts: 1 unless the draft was
    lost before.
    """

    arm: str
    width: int
    prompt: Prompt
    token_ids: tuple[int, ...]
    ttft_s: float
    total_s: float
    verify_steps: int = 0
    step_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()
    attempts: int = 1

    @property
    def tokens_per_s(self) -> float:
        """Over the whole request, prompt processing included."""
        return len(self.token_ids) / self.total_s

    @property
    def key(self) -> tuple[str, int]:
        """What a sample of another arm shares when it answers the same prompt."""
        return self.prompt.workload, self.prompt.index


def throughput(samples: Sequence[Sample]) -> float:
    """Tokens per second: all tokens over all time."""
    return sum(len(s.token_ids) for s in samples) / sum(s.total_s for s in samples)


def acceptance_length(samples: Sequence[Sample]) -> float:
    """Tokens per verify step, the bonus token included: all tokens over all steps; 1.0 is plain."""
    steps = sum(s.verify_steps for s in samples)
    return sum(s.step_tokens for s in samples) / steps if steps else 1.0


def accepted_shares(samples: Sequence[Sample]) -> list[float]:
    """Per position of the proposals, the share of verify steps that accepted it."""
    steps = sum(s.verify_steps for s in samples)
    length = max((len(s.accepted_by_position) for s in samples), default=0)
    padded = (
        s.accepted_by_position + (0,) * (length - len(s.accepted_by_position)) for s in samples
    )
    return [sum(column) / steps for column in zip(*padded, strict=True)] if steps else []


def median_ttft_s(samples: Sequence[Sample]) -> float:
    return median(s.ttft_s for s in samples)


def median_ratio(samples: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Median over prompts of this arm's tokens/s over the reference's on the same prompt."""
    return median(mine.tokens_per_s / its.tokens_per_s for mine, its in pairs(samples, reference))


def identical_share(samples: Sequence[Sample], reference: Sequence[Sample]) -> float:
    """Share of prompts answered with the reference's token ids."""
    return fmean(mine.token_ids == its.token_ids for mine, its in pairs(samples, reference))


def pairs(
    samples: Sequence[Sample], reference: Sequence[Sample]
) -> Iterable[tuple[Sample, Sample]]:
    """Each sample with the reference's of the same prompt; both have all prompts."""
    by_prompt = {s.key: s for s in reference}
    assert by_prompt.keys() == {s.key for s in samples}, "arms answered different prompts"
    return [(s, by_prompt[s.key]) for s in samples]
