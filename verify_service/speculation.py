"""Speculation in figures: one count a sequence and step in, the field's metrics out on demand."""

from typing import Final

from serving.metrics import Distribution, Histogram, Reading, Total

MOST_TOKENS: Final = 65  # of a step; an acceptance length beyond it falls into the last bucket


class StepCounts:
    """Verify steps of single sequences by (proposed, accepted) draft tokens.

    One increment, without a lock: only the engine's thread counts.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], int] = {}

    def add(self, proposed: int, accepted: int) -> None:
        """A step after the prompt; a plain one has nothing proposed."""
        key = proposed, accepted
        self._steps[key] = self._steps.get(key, 0) + 1

    def plain(self) -> int:
        """Steps without proposals."""
        return self._steps.get((0, 0), 0)

    def drafted(self) -> dict[tuple[int, int], int]:
        """The others, by (proposed, accepted)."""
        return {key: count for key, count in self._steps.copy().items() if key[0]}

    def by_position(self) -> Reading:
        """Accepted draft tokens by their place in the block, from 0."""
        found: dict[int, int] = {}
        for (proposed, accepted), count in self.drafted().items():
            for position in range(proposed):
                found[position] = found.get(position, 0) + (count if position < accepted else 0)
        return {(str(position),): count for position, count in sorted(found.items())}


class AcceptanceLength(Histogram):
    """Tokens a drafted step gave, the bonus token included."""

    def __init__(self, name: str, help: str, counts: StepCounts) -> None:
        super().__init__(name, help, range(1, MOST_TOKENS + 1))
        self._steps = counts

    def spread(self) -> Distribution:
        counts, total = [0] * (MOST_TOKENS + 1), 0
        for (_, accepted), count in self._steps.drafted().items():
            counts[min(accepted, MOST_TOKENS)] += count
            total += count * (accepted + 1)
        return Distribution(bounds=range(1, MOST_TOKENS + 1), counts=counts, sum=total)


STEP_COUNTS: Final = StepCounts()

PLAIN_STEPS: Final = Total(
    "domino_verify_plain_steps_total", "Steps of single sequences without proposals"
)
DRAFTS: Final = Total(
    "domino_verify_spec_decode_num_drafts_total", "Steps of single sequences with proposals"
)
DRAFT_TOKENS: Final = Total(
    "domino_verify_spec_decode_num_draft_tokens_total", "Draft tokens verified"
)
ACCEPTED_TOKENS: Final = Total(
    "domino_verify_spec_decode_num_accepted_tokens_total",
    "Draft tokens that equalled the target's choice",
)
ACCEPTED_BY_POSITION: Final = Total(
    "domino_verify_spec_decode_num_accepted_tokens_per_pos_total",
    "Accepted draft tokens by place in the block, from 0",
    "position",
)
ACCEPTANCE_LENGTH: Final = AcceptanceLength(
    "domino_verify_acceptance_length",
    "Tokens a drafted step gave, bonus token included, before a stop cut them off",
    STEP_COUNTS,
)

PLAIN_STEPS.watch(STEP_COUNTS.plain)
DRAFTS.watch(lambda: sum(STEP_COUNTS.drafted().values()))
DRAFT_TOKENS.watch(lambda: sum(p * n for (p, _), n in STEP_COUNTS.drafted().items()))
ACCEPTED_TOKENS.watch(lambda: sum(a * n for (_, a), n in STEP_COUNTS.drafted().items()))
ACCEPTED_BY_POSITION.source = STEP_COUNTS.by_position
