"""Notices a draft that does not fit the target: nothing else shows it, the output stays right."""

import logging

STEPS = 200
LEAST = 0.3

log = logging.getLogger(__name__)


class FirstProposals:
    """How often the first proposal of a block was right, over each run of STEPS greedy steps."""

    def __init__(self) -> None:
        self._steps = self._right = 0
        self._warned = False

    def count(self, right: bool) -> None:
        """One drafted step; warns when a whole run stays below LEAST, once until one does not."""
        self._steps += 1
        self._right += right
        if self._steps < STEPS:
            return
        share = self._right / self._steps
        if share < LEAST and not self._warned:
            log.warning(
                "the draft's first proposal was right in %.0f%% of the last %d drafted steps; a "
                "draft made for this target reaches %.0f%%: check both with `domino-serve inspect "
                "DRAFT --target TARGET`, and run without it where it does not pay",
                100 * share,
                STEPS,
                100 * LEAST,
            )
        self._warned = share < LEAST
        self._steps = self._right = 0
