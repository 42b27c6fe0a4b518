"""Which services of a stack may be started again: readiness and ends in, a decision out."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

STEADY_S: Final = 60.0  # a service that ran for so long begins anew
MOST: Final = 3  # starts in a row that came to nothing


class Ends:
    """By service; one that ends again and again would only hide why."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready_at: dict[str, float] = {}
        self._in_vain: Counter[str] = Counter()

    def ready(self, service: str) -> None:
        """It has started."""
        self._ready_at[service] = self._clock()

    def may_start_again(self, service: str) -> bool:
        """To be asked once for each end."""
        ready_at = self._ready_at.pop(service, None)
        if ready_at is not None and self._clock() - ready_at >= STEADY_S:
            del self._in_vain[service]
        self._in_vain[service] += 1
        return self._in_vain[service] <= MOST
