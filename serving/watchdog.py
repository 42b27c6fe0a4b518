"""Ends the process when an engine step hangs: callers notice a dead service, not a stuck one.

A rank that died leaves the others waiting in a collective, a driver fault a kernel that never ends.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from typing import Final, Protocol

EXIT_CODE: Final = 70
CHECKS: Final = 10  # per limit

log = logging.getLogger(__name__)


class Steps(Protocol):
    """Whose steps are watched."""

    @property
    def step_began(self) -> float | None:
        """When the step that runs began, on the monotonic clock; None while none does."""
        ...


def watch_steps(steps: Steps, limit_s: float) -> None:
    """Exits with EXIT_CODE, the threads' stacks on stderr, when a step takes longer."""

    def watch() -> None:
        while True:
            time.sleep(min(limit_s / CHECKS, 1.0))
            began = steps.step_began
            if began is not None and time.monotonic() - began > limit_s:
                log.critical("a step has taken %g s: the process ends (--step-timeout-s)", limit_s)
                faulthandler.dump_traceback(sys.stderr)
                os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="step-watchdog", daemon=True).start()
