"""What steps cost, learnt while serving: counts and seconds in, expected seconds out."""

from bisect import bisect_left
from collections import defaultdict
from typing import Final

from verify_service.timeline import Step

SMOOTHING: Final = 0.15  # weight of the newest time
SHARED: Final = 0.1  # how much of a change is taken to hold for every count: contexts grow
SLOWEST: Final = 1.1  # times what was expected, for what counts: other work holds up single steps


class Curve:
    """Seconds by a count: measured at some, straight between them, flat beyond."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._seconds: list[float] = []
        self._twice: set[int] = set()

    def add(self, count: int, seconds: float) -> None:
        """The second time at a count replaces a slower first one, which warmed things up."""
        place = bisect_left(self._counts, count)
        if place == len(self._counts) or self._counts[place] != count:
            self._counts.insert(place, count)
            self._seconds.insert(place, seconds)
            return
        before = self._seconds[place]
        if count not in self._twice:
            self._twice.add(count)
            self._seconds[place] = min(before, seconds)
            return
        if before > 0:
            seconds = min(seconds, SLOWEST * before)
            shared = (seconds / before) ** (SHARED * SMOOTHING)
            self._seconds = [known * shared for known in self._seconds]
        self._seconds[place] = before + SMOOTHING * (seconds - before)

    def __call__(self, count: int) -> float:
        """0 while nothing is measured."""
        if not self._counts:
            return 0.0
        after = bisect_left(self._counts, count)
        if after in (0, len(self._counts)):
            return self._seconds[min(after, len(self._counts) - 1)]
        low, high = self._counts[after - 1], self._counts[after]
        share = (count - low) / (high - low)
        return self._seconds[after - 1] * (1 - share) + self._seconds[after] * share


class DraftCosts:
    """Seconds of one mode's drafts: by sequences, and a proposal's by sequences."""

    def __init__(self) -> None:
        self.draft, self.proposal = Curve(), Curve()


class StepCosts:
    """A step's seconds: the target's by positions, the draft's by mode."""

    def __init__(self) -> None:
        self._verify = Curve()
        self._drafts: defaultdict[int, DraftCosts] = defaultdict(DraftCosts)

    def add(self, step: Step, mode: int, drafted: int, draft_tokens: int) -> None:
        """drafted: sequences that `draft_tokens` each were asked for, most of them in `mode`.

        Steps with prompts, whose positions cost otherwise, teach nothing.
        """
        if step.prompt_positions or not step.positions:
            return
        own = step.plan_ns + step.verify_ns + step.commit_ns
        self._verify.add(step.positions, own / 1e9)
        if drafted and draft_tokens:
            rest = step.send_ns + step.wait_ns - step.draft_rollout_ns
            self._drafts[mode].draft.add(drafted, max(rest, 0) / 1e9)
            rollout = step.draft_rollout_ns / draft_tokens / 1e9
            self._drafts[mode].proposal.add(drafted, rollout)

    def expected(self, mode: int, plain: int, drafted: int, draft_tokens: int) -> float:
        """Seconds of a step of `plain` single positions and `drafted` sequences with proposals."""
        seconds = self._verify(plain + drafted * (1 + draft_tokens))
        if drafted and draft_tokens:
            costs = self._drafts[mode]
            seconds += costs.draft(drafted) + draft_tokens * costs.proposal(drafted)
        return seconds
