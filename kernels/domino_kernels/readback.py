"""Small tensors on their way between host and device, which wait for no other work of it."""

from typing import Any

import torch
from torch import Tensor


def sent(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`values` (lists or an array) on the device, once what was launched before has run."""
    host = torch.tensor(values, dtype=dtype)
    host = host.pin_memory() if device.type == "cuda" else host
    return host.to(device, non_blocking=True)


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
