"""`python -m tests.chaos.breaking MODULE ...`: a draft or verify service; SIGUSR1 breaks its GPU.

After a device-side assertion CUDA refuses everything that the process asks of it.
"""

import importlib
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

PLACES: Final = {
    "draft_service": ("draft_service.engine", "DraftEngine", "step"),
    "verify_service": ("verify_service.gpu_executor", "GpuExecutor", "start"),
}


def breaking(step: Callable[..., Any], due: threading.Event) -> Callable[..., Any]:
    """The step, and before it, once that is due, a kernel that reads where nothing is."""

    def run(*args: Any, **kwargs: Any) -> Any:
        import torch

        if due.is_set():
            torch.zeros(1, device="cuda")[torch.tensor([7], device="cuda")]
        return step(*args, **kwargs)

    return run


if __name__ == "__main__":
    _, module, *sys.argv[1:] = sys.argv
    signalled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: signalled.set())
    where, owner, method = PLACES[module]
    kind = getattr(importlib.import_module(where), owner)
    setattr(kind, method, breaking(getattr(kind, method), signalled))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
