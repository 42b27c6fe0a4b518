"""How often proposals were accepted lately, place by place, of one sequence or of many."""

from collections.abc import Sequence as Seq
from itertools import accumulate
from operator import mul
from typing import Final

KEPT: Final = 0.97  # of a sequence's counts, a step
ALIKE: Final = 0.5  # what a place's steps say of the next one's, for one further on again as much
PRIOR_STEPS: Final = 4.0  # what the acceptance of others weighs against the own


class AcceptanceHistory:
    """Counts that fade. last: proposals and accepted ones of the last step."""

    def __init__(self, kept: float = KEPT) -> None:
        self._fading = kept
        self._tried: list[float] = []
        self._kept: list[float] = []
        self.last = (0, 0)

    def add(self, proposed: int, accepted: int) -> None:
        """A verified step; what stands behind the first refusal was not tried."""
        self.last = proposed, accepted
        tried = min(proposed, accepted + 1)
        missing = tried - len(self._tried)
        self._tried += [0.0] * missing
        self._kept += [0.0] * missing
        for place in range(tried):
            self._tried[place] = self._tried[place] * self._fading + 1
            self._kept[place] = self._kept[place] * self._fading + (place < accepted)

    def rates(self, prior: Seq[float], steps: float = PRIOR_STEPS) -> list[float]:
        """[n]: how often the proposal at a place is accepted, if those before it are; the prior
        [n], which weighs as so many steps, stands in for what is not known yet."""
        return [
            (kept + steps * rate) / (tried + steps)
            for kept, tried, rate in zip(self._kept, self._tried, prior, strict=False)
        ] + list(prior[len(self._tried) :])

    def rates_alone(self, hoped: float, count: int) -> list[float]:
        """[count]: the same without a prior: the first place is first taken for `hoped`, by the
        weight of one step, each other one for like those before it, the nearest most, by a prior's
        weight: few steps get so far, and one long run of luck, or one refusal, says little."""
        found: list[float] = []
        kept_before, tried_before = hoped, 1.0
        for place in range(count):
            weight = PRIOR_STEPS if place else 1.0
            known = place < len(self._tried)
            kept, tried = (self._kept[place], self._tried[place]) if known else (0.0, 0.0)
            found.append((kept + weight * kept_before / tried_before) / (tried + weight))
            kept_before, tried_before = ALIKE * kept_before + kept, ALIKE * tried_before + tried
        return found


def expected_tokens(rates: Seq[float]) -> list[float]:
    """[n + 1]: tokens that a step with 0..n proposals is expected to give, the bonus included."""
    reached = accumulate(rates, mul, initial=1.0)
    return list(accumulate(reached))
