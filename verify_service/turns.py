"""Whose rows a pass makes: sequences drafted for by an older and a newer draft take turns.

Rows in a sequence's pages are one projection's throughout, and a pass projects with one of them.
There is one as a rule; two while drafts are updated one after another.
"""

from typing import Final

from verify_service.sequence import Sequence

KEPT: Final = 2  # newest projections


class Turns:
    """newest: number of the projection that came last; current: the one of the next pass."""

    def __init__(self) -> None:
        self.newest = self.current = 0

    def take(self, running: list[Sequence]) -> list[Sequence]:
        """Those of them that run in the next pass: all, where their rows are of one projection."""
        for sequence in running:
            if sequence.projection is None:
                if sequence.request.wish and not sequence.kv_len:
                    sequence.projection = self.newest
            elif sequence.projection <= self.newest - KEPT:
                sequence.projection = None
        numbers = sorted({s.projection for s in running if s.projection is not None})
        if not numbers:
            self.current = self.newest
            return running
        self.current = next((n for n in numbers if n > self.current), numbers[0])
        return [s for s in running if s.projection in (self.current, None)]
