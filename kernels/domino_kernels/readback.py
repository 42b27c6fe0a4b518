"""A small tensor of a device on its way to the host, read without waiting for later work."""

from typing import Any

import torch
from torch import Tensor


class Readback:
    """Copied behind what is launched so far; on a CPU at once."""

    def __init__(self, tensor: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        if not tensor.is_cuda:
            self._host = tensor.clone()
            return
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record()

    def rows(self) -> list[Any]:
        """As nested lists, once they are there."""
        if self._done:
            self._done.synchronize()
        found: list[Any] = self._host.tolist()
        return found
