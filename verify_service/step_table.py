"""What the target's steps cost on this GPU, known before the first request: seconds by batch, width
and positions of context. Measured by verify_service.gpu_costs, read by verify_service.table_width.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a step without context, and of each position that its sequences have."""

    seconds: float
    per_position: float


def through(short: tuple[int, float], long: tuple[int, float]) -> StepCost:
    """The line through two measurements (positions, seconds); flat where it would fall."""
    (few, fast), (many, slow) = short, long
    slope = max(0.0, (slow - fast) / (many - few)) if many > few else 0.0
    return StepCost(seconds=fast - few * slope, per_position=slope)


class StepTable:
    """Costs by (batch, width) of every graph; a step runs in the smallest that holds it."""

    def __init__(self, costs: Mapping[tuple[int, int], StepCost]) -> None:
        self._costs = dict(costs)
        self._batches = sorted({batch for batch, _ in costs})
        self.widths = sorted({width for _, width in costs})

    def seconds(self, sequences: int, width: int, positions: int) -> float:
        """A step of so many sequences of `width` ids, with `positions` of context in all.

        More sequences than the largest batch take several steps.
        """
        width = self.widths[min(bisect_left(self.widths, width), len(self.widths) - 1)]
        whole, rest = divmod(sequences, self._batches[-1])
        parts = [self._costs[self._batches[-1], width]] * whole
        if rest:
            parts.append(self._costs[self._batches[bisect_left(self._batches, rest)], width])
        context = positions * parts[0].per_position if parts else 0.0
        return sum(part.seconds for part in parts) + context
