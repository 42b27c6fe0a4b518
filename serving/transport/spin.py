"""How long a process looks for a step's next message before it sleeps.

Waking a thread took 0.1 ms and more on hosts of GPUs, a C1 step is 7 ms. Looking keeps a core busy
while a model runs on the other side, and no longer: who is idle sleeps.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SPIN_S: Final = 0.02  # longer than a step
CORES: Final = 8  # with fewer, other threads need them

_one: Final = threading.Lock()  # several would take Python's lock from each other


def spin_s(option: float | None, device: str) -> float:
    """Of a service's option; None is what suits its device."""
    if option is not None:
        return option
    enough = device.startswith("cuda") and len(os.sched_getaffinity(0)) >= CORES
    return SPIN_S if enough else 0.0


@contextmanager
def spinning(until: float) -> Iterator[Callable[[], bool]]:
    """In its body the call tells whether to look again, until then on the monotonic clock; False:
    sleep. One thread of a process spins at a time, the others sleep."""
    mine = until > time.monotonic() and _one.acquire(blocking=False)

    def again() -> bool:
        nonlocal mine
        if mine and time.monotonic() >= until:
            mine = False
            _one.release()
        if mine:
            os.sched_yield()  # whoever else needs this core has it
        return mine

    try:
        yield again
    finally:
        if mine:
            _one.release()
