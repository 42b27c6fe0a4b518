"""The torch device an engine computes on, tried before anything is loaded; imported by engines."""

import torch

from serving.options import OptionError

SUPPORTED = ("cpu", "cuda")


def open_device(name: str) -> torch.device:
    """Raises OptionError when this machine, or this build of torch, has no such device."""
    try:
        device = torch.device(name)
        if device.type in SUPPORTED:
            torch.empty(1, device=device)
            return device
        reason = f"only {' and '.join(SUPPORTED)} can be served"
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        reason = str(error).splitlines()[0].rstrip(".")
    raise OptionError("device", name, f"cannot be used: {reason}; cpu always works")
