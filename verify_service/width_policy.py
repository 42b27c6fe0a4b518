"""How many proposals each step asks for: step times and acceptances in, a width out.

`AutoWidth` takes the width with the most expected tokens per second, plain decoding included.
"""

from collections.abc import Sequence as Seq
from typing import Final, Protocol

from verify_service.mode_acceptance import ModeAcceptance, most_frequent_mode
from verify_service.sequence import Sequence
from verify_service.step_costs import StepCosts
from verify_service.timeline import Step

TRIED: Final = (0, 1, 2, 3, 4, 5, 7, 9, 11, 15, 23, 31)  # draft tokens to choose from
EVERY: Final = 4  # steps between two choices
GAIN: Final = 1.03  # by how much another width must be better to be taken
FIRST_PROBE, LAST_PROBE = 64, 1024  # plain steps between two looks whether drafts pay again
PROBE_STEPS: Final = 3
# Steps without a plain one after which some are taken, to see what they cost now, where by what
# they cost last they give at least this share of the best choice's speed.
LOOK_AFTER, NEAR = 64, 0.8


class WidthPolicy(Protocol):
    """Asked once a step, before drafts are.

    halves: from then on two halves of the sequences take turns at target and draft. wakes: as
    drafts rested, one more plain step runs already; they are given their rows meanwhile, and asked
    for the same number of proposals behind it.
    """

    halves: bool
    wakes: bool

    def draft_tokens(self, sequences: Seq[Sequence]) -> int | None:
        """Proposals to ask for at most; 0: none, the next step is plain; None: as planned."""
        ...

    def observe(self, step: Step) -> None:
        """What the step of the last `draft_tokens` has cost."""
        ...


class PlannedWidth:
    """As many as each request's plan says."""

    wakes = False

    def __init__(self, *, halves: bool = False) -> None:
        self.halves = halves

    def draft_tokens(self, sequences: Seq[Sequence]) -> int | None:
        return None

    def observe(self, step: Step) -> None:
        """Nothing depends on it."""


class AutoWidth:
    """A mode's first drafted steps try every width; then a choice every few steps.

    most: draft tokens at most. Steps of several modes count as the most frequent one's.
    """

    wakes = False

    def __init__(self, most: int, *, halves: bool = False) -> None:
        self.halves = halves
        self._choices = [n for n in TRIED if n < most] + [most]
        self._costs = StepCosts()
        self._untried: dict[int, list[int]] = {}  # by mode, the widest last
        self._acceptance = ModeAcceptance(most)
        self._current, self._drafted, self._mode = most, 0, 0  # of the last step
        self._steps = self._plain_steps = 0
        self._probing, self._probe_after = 0, FIRST_PROBE
        self._last_plain = 0  # number of the last plain step

    def draft_tokens(self, sequences: Seq[Sequence]) -> int:
        drafted = [s for s in sequences if s.draft and not s.in_prefill]
        self._drafted = len(drafted)
        if not drafted:
            return self._current
        self._mode = most_frequent_mode(drafted)
        untried = self._untried.setdefault(self._mode, [n for n in self._choices for _ in range(2)])
        self._steps += 1
        if self._steps % EVERY == 0:
            self._acceptance.remember(drafted)
        if untried:
            self._current = untried.pop()
        elif self._probing:
            self._probing -= 1
        elif self._plain_steps >= self._probe_after:
            self._current = self._best(self._speeds(drafted, len(sequences)), self._choices[1:])
            self._plain_steps, self._probing = 0, PROBE_STEPS
            self._probe_after = min(2 * self._probe_after, LAST_PROBE)
        elif self._steps % EVERY == 0:
            self._choose(drafted, len(sequences))
        if not self._current:
            self._plain_steps, self._last_plain = self._plain_steps + 1, self._steps
        return self._current

    def observe(self, step: Step) -> None:
        self._costs.add(step, self._mode, self._drafted, self._current)

    def _choose(self, drafted: Seq[Sequence], sequences: int) -> None:
        speeds = self._speeds(drafted, sequences)
        best = self._best(speeds, self._choices)
        is_old = self._steps - self._last_plain >= LOOK_AFTER
        if best and is_old and speeds[0] > NEAR * speeds[best]:
            best = 0
        elif best:
            self._plain_steps, self._probe_after = 0, FIRST_PROBE
        self._current = best

    def _speeds(self, drafted: Seq[Sequence], sequences: int) -> dict[int, float]:
        """Tokens a second that each choice should give."""
        expected = self._acceptance.expected(drafted)
        plain = sequences - len(drafted)

        def speed(choice: int) -> float:
            tokens = plain + sum(of_one[choice] for of_one in expected)
            seconds = self._costs.expected(self._mode, plain, len(drafted), choice)
            return tokens / max(seconds, 1e-9)

        return {choice: speed(choice) for choice in self._choices}

    def _best(self, speeds: dict[int, float], choices: Seq[int]) -> int:
        """Of `choices` the fastest; the current one where it is close."""
        best = max(choices, key=lambda choice: speeds[choice])
        stays = self._current in choices and speeds[best] < GAIN * speeds[self._current]
        return self._current if stays else best
