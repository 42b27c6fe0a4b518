"""Whether a draft's steps hang, or no step can run on its device any more; servicer's steps in.

A draft that is stuck or broken answers handshakes as before, so that nobody would restart it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from serving.errors import ServingError


class StepHealth:
    """Calls `on_failure` where a step has failed and its device with it, or the books are wrong."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began: dict[int, float] = {}  # by thread
        # Kept, since its frames hold memory that a broken device's driver does not take back: the
        # process would abort instead of ending.
        self.broken_by: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None

    @property
    def step_began(self) -> float | None:
        """Of the oldest step that runs, for serving.watchdog."""
        return min(self._began.copy().values(), default=None)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Body is a step, which may wait for others."""
        thread = threading.get_ident()
        self._began[thread] = time.monotonic()
        try:
            yield
        except ServingError:
            raise
        except Exception as error:
            if isinstance(error, AssertionError) or not works(self._device):
                self.broken_by = error
                self.on_failure()
            raise
        finally:
            del self._began[thread]


def works(device: torch.device) -> bool:
    """Whether the device still computes: after some faults CUDA refuses everything."""
    try:
        return bool(torch.ones(1, device=device).add(1).item() == 2)
    except RuntimeError:
        return False
