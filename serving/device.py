"""The torch device an engine computes on, and what fits into its memory; imported by engines."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from serving.metrics import GPU_MEMORY, Reading
from serving.options import OptionError

SUPPORTED = ("cpu", "cuda")


def open_device(name: str) -> torch.device:
    """Raises OptionError when this machine, or this build of torch, has no such device."""
    if name.partition(":")[0] not in SUPPORTED:
        raise OptionError("device", name, f"cannot be used: only {' and '.join(SUPPORTED)} can")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise OptionError("device", name, f"cannot be used: {reason}; cpu always works") from None
    if device.type == "cuda":
        GPU_MEMORY.source = partial(_memory, device)
    return device


@contextmanager
def sized_by(option: str, value: int) -> Iterator[None]:
    """Body that allocates what an option sizes; OptionError when the device has not so much."""
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        reason = str(error).splitlines()[0]
        raise OptionError(option, value, f"exceeds the device's memory ({reason})") from None


def _memory(device: torch.device) -> Reading:
    return {
        ("allocated",): torch.cuda.memory_allocated(device),
        ("reserved",): torch.cuda.memory_reserved(device),
    }
