"""How long drafts are waited for, learnt while serving: counts and seconds in, seconds out."""

from bisect import bisect_left
from collections import deque
from typing import Final

KEPT: Final = 6  # newest times of a count


class Waits:
    """Seconds by a count: of each count's newest times one of the shorter, since what disturbs
    a step only lengthens it; straight between counts, flat beyond."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._counts: list[int] = []

    def add(self, count: int, seconds: float) -> None:
        if count not in self._times:
            self._times[count] = deque(maxlen=KEPT)
            self._counts.insert(bisect_left(self._counts, count), count)
        self._times[count].append(seconds)

    def __call__(self, count: int) -> float:
        """0 while nothing is measured."""
        if not self._counts:
            return 0.0
        after = min(bisect_left(self._counts, count), len(self._counts) - 1)
        high = self._counts[after]
        if count >= high or not after:
            return self._typical(high)
        low = self._counts[after - 1]
        share = (count - low) / (high - low)
        return self._typical(low) * (1 - share) + self._typical(high) * share

    def _typical(self, count: int) -> float:
        times = sorted(self._times[count])
        return times[len(times) // 3]
