"""A pass of the target told before it has ended: verify's GPU writes what it chose into a slot of
shared memory and sets a flag; the draft's GPU waits for the flag and goes on. No host in between.

A host can set the flag as well, so that a GPU does not wait for a peer that has died.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from serving.transport import cuda_driver as driver
from serving.transport.plane import HEADER_BYTES
from serving.transport.segment import Segment

_FLAGS: Final = 1024  # in the contract: four bytes a slot
_ALIGN: Final = 256  # of the rows, in the contract
_NUMBERS: Final = 1 << 32


class _Places:
    """Where things are in pinned memory; device: that uses it."""

    def __init__(self, segment: Segment, slot_bytes: int, device: torch.device) -> None:
        self._segment, self._slot_bytes, self._device = segment, slot_bytes, device

    def _tensor(self, first: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        count = torch.Size(shape).numel()
        flat = torch.frombuffer(self._segment.bytes, dtype=dtype, count=count, offset=first)
        return flat.view(*shape)

    def _both(
        self, slot: int, sessions: int, width: int, hidden: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        first = HEADER_BYTES + slot * self._slot_bytes
        chosen = self._tensor(first, (sessions, width + 2), torch.int32)
        rows = (sessions * width, hidden)
        return chosen, self._tensor(first + _aligned(chosen.nbytes), rows, dtype)

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)


class OwnEarly(_Places):
    """Verify's side; used by one thread at a time."""

    def __init__(self, segment: Segment, slot_bytes: int, device: torch.device) -> None:
        super().__init__(segment, slot_bytes, device)
        self._written = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def fits(self, chosen: Tensor, rows: Tensor) -> bool:
        sessions, columns = chosen.shape
        return size_of(sessions, columns, rows.nbytes) <= self._slot_bytes

    def fill(self, slot: int, chosen: Tensor, rows: Tensor, number: int) -> None:
        """chosen [sessions, width + 2] int32, rows [sessions * width, hidden], behind what the
        device's stream runs now."""
        sessions, columns = chosen.shape
        there = self._both(slot, sessions, columns - 2, rows.shape[1], rows.dtype)
        there[0].copy_(chosen, non_blocking=True)
        there[1].copy_(rows, non_blocking=True)
        with self._segment.pinning():
            flag = self._segment.address() + _FLAGS + 4 * slot
            driver.set_flag(self._stream(), flag, number % _NUMBERS)
        self._written.record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """Returns when nothing is on its way any more."""
        self._written.synchronize()


class MappedEarly(_Places):
    """The draft's side."""

    def __init__(self, segment: Segment, slot_bytes: int, device: torch.device) -> None:
        super().__init__(segment, slot_bytes, device)
        self._waited: dict[int, int] = {}  # numbers by slot

    def read(
        self, slot: int, number: int, sessions: int, width: int, hidden: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Copies on the device, as `fill` was given them; there once the device's stream has waited
        for them. What fits a slot."""
        with self._segment.pinning():
            flag = self._segment.address() + _FLAGS + 4 * slot
            driver.wait_flag(self._stream(), flag, number % _NUMBERS)
        self._waited[slot] = number
        chosen, rows = self._both(slot, sessions, width, hidden, dtype)
        return (
            chosen.to(self._device, non_blocking=True, copy=True),
            rows.to(self._device, non_blocking=True, copy=True),
        )

    def is_written(self, slot: int) -> bool:
        """Whether the device that waits for this slot can go on."""
        behind = (self._flag(slot).value - self._waited[slot]) % _NUMBERS
        return behind < _NUMBERS // 2

    def let_go(self) -> None:
        """Ends every wait, whatever is in the slots."""
        for slot, number in self._waited.items():
            if not self.is_written(slot):
                self._flag(slot).value = number % _NUMBERS

    def close(self) -> None:
        """Returns when nothing is read any more."""
        self.let_go()
        torch.cuda.current_stream(self._device).synchronize()

    def _flag(self, slot: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self._segment.bytes, _FLAGS + 4 * slot)


def size_of(sessions: int, columns: int, row_bytes: int) -> int:
    """Bytes in a slot; row_bytes: of all rows together."""
    return _aligned(4 * sessions * columns) + row_bytes


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
