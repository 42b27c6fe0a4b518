"""How long a process looks for a step's next message before it sleeps.

Waking a thread took 0.1 ms and more on hosts of GPUs, a C1 step is 7 ms. Looking keeps a core busy
while a model runs on the other side, and no longer: who is idle sleeps.
"""

import os
from typing import Final

SPIN_S: Final = 0.02  # longer than a step
CORES: Final = 8  # with fewer, other threads need them


def spin_s(option: float | None, device: str) -> float:
    """Of a service's option; None is what suits its device."""
    if option is not None:
        return option
    enough = device.startswith("cuda") and len(os.sched_getaffinity(0)) >= CORES
    return SPIN_S if enough else 0.0
