"""How often a sequence's proposals were accepted lately, place by place."""

from collections.abc import Sequence as Seq
from typing import Final

KEPT: Final = 0.97  # of the counts, a step
PRIOR_STEPS: Final = 4.0  # what the acceptance of all weighs against a sequence's own


class AcceptanceHistory:
    """Counts that fade; `PRIOR_STEPS` of everybody's rates stand in until there are own ones."""

    def __init__(self) -> None:
        self._tried: list[float] = []
        self._kept: list[float] = []

    def add(self, proposed: int, accepted: int) -> None:
        """A verified step; what stands behind the first refusal was not tried."""
        tried = min(proposed, accepted + 1)
        missing = tried - len(self._tried)
        self._tried += [0.0] * missing
        self._kept += [0.0] * missing
        for place in range(tried):
            self._tried[place] = self._tried[place] * KEPT + 1
            self._kept[place] = self._kept[place] * KEPT + (place < accepted)

    def expected_tokens(self, prior: Seq[float]) -> list[float]:
        """[n + 1]: tokens that a step with 0..n proposals is expected to give, the bonus included.

        prior [n]: how often everybody's proposal at a place is accepted, if those before it are.
        """
        found, reached = [1.0], 1.0
        for place, rate in enumerate(prior):
            if place < len(self._tried):
                kept = self._kept[place] + PRIOR_STEPS * rate
                rate = kept / (self._tried[place] + PRIOR_STEPS)
            reached *= rate
            found.append(found[-1] + reached)
        return found
