"""What every sequence's drafts were accepted, mode by mode: the prior of each sequence's own.

Asked by the width policies (verify_service.width_policy, verify_service.table_width).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence as Seq
from typing import Final

from verify_service.acceptance_history import (
    PRIOR_STEPS,
    AcceptanceHistory,
    expected_tokens,
)
from verify_service.sequence import Sequence

HOPED_RATE: Final = 0.8  # of proposals at places that nobody has tried yet
ALL_KEPT: Final = 0.998  # of everybody's counts, a look
# Where one width is chosen for all, luck costs more than slow learning: what everybody was accepted
# is kept for longer, and weighs more for each the more there are.
CALM_KEPT, CALM_PRIOR_STEPS = 0.9995, 4 * PRIOR_STEPS


class ModeAcceptance:
    """Places that nobody has tried are hoped to be good, so that narrow steps lead to wider ones;
    where not `hopeful` they are taken for like those before them, and luck counts for less."""

    def __init__(self, most: int, *, hopeful: bool = True) -> None:
        """most: draft tokens at most."""
        self._most, self._hopeful = most, hopeful
        kept = ALL_KEPT if hopeful else CALM_KEPT
        self._everybody: defaultdict[int, AcceptanceHistory] = defaultdict(
            lambda: AcceptanceHistory(kept)
        )

    def remember(self, drafted: Seq[Sequence]) -> None:
        """Takes in what the last step of each was accepted."""
        for sequence in drafted:
            self._everybody[_mode(sequence)].add(*sequence.history.last)

    def expected(self, drafted: Seq[Sequence]) -> list[list[float]]:
        """[sequences][most + 1]: tokens that a step with 0..most proposals should give each."""
        priors = {mode: self._prior(mode) for mode in {_mode(s) for s in drafted}}
        steps = PRIOR_STEPS if self._hopeful else CALM_PRIOR_STEPS * len(drafted)
        return [expected_tokens(s.history.rates(priors[_mode(s)], steps)) for s in drafted]

    def _prior(self, mode: int) -> list[float]:
        everybody = self._everybody[mode]
        if self._hopeful:
            return everybody.rates([HOPED_RATE] * self._most)
        return everybody.rates_alone(HOPED_RATE, self._most)


def most_frequent_mode(drafted: Seq[Sequence]) -> int:
    """Of one sequence at least."""
    return Counter(map(_mode, drafted)).most_common(1)[0][0]


def _mode(sequence: Sequence) -> int:
    assert sequence.draft is not None
    return sequence.draft.plan.mode
