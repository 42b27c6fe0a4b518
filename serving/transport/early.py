"""A pass of the target told before it has ended: verify's GPU writes what it chose into a slot of
shared memory and sets a flag; the draft's GPU waits for the flag and goes on, and writes what it
proposes into the same slot for verify's GPU. No host in between.

A host can set the flags as well, so that a GPU does not wait for a peer that has died.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from serving.transport import cuda_driver as driver
from serving.transport.plane import HEADER_BYTES
from serving.transport.segment import Segment

_CHOSEN, _PROPOSED = 1024, 2048  # flags, in the contract: four bytes a slot
_ALIGN: Final = 256  # of what follows, in the contract
_NUMBERS: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyShape:
    """What a slot holds: chosen [sessions, width + 2] int32, rows [sessions * width, hidden] of
    `dtype`, proposals [sessions, count] int32."""

    sessions: int
    width: int
    count: int
    hidden: int
    dtype: torch.dtype

    @property
    def rows_at(self) -> int:
        """Where the rows begin in a slot."""
        return _aligned(4 * self.sessions * (self.width + 2))

    @property
    def proposals_at(self) -> int:
        return self.rows_at + _aligned(
            self.sessions * self.width * self.hidden * self.dtype.itemsize
        )

    @property
    def size(self) -> int:
        return self.proposals_at + 4 * self.sessions * self.count


class Early:
    """One side's; used by one thread at a time, but for `let_go`."""

    def __init__(self, segment: Segment, slot_bytes: int, device: torch.device) -> None:
        self._segment, self._slot_bytes, self._device = segment, slot_bytes, device
        self._waited: dict[int, int] = {}  # values by flag

    def fits(self, shape: EarlyShape) -> bool:
        return shape.size <= self._slot_bytes

    def is_chosen(self, slot: int) -> bool:
        """Whether the device that waits for what this slot tells can go on."""
        return self._is_set(_CHOSEN + 4 * slot)

    def let_go(self) -> None:
        """Ends every wait of this side's device, whatever is in the slots."""
        for flag, value in list(self._waited.items()):
            if not self._is_set(flag):
                self._word(flag).value = value

    def close(self) -> None:
        """Returns when nothing is on its way any more."""
        self.let_go()
        torch.cuda.current_stream(self._device).synchronize()

    def tell(self, slot: int, number: int, shape: EarlyShape, chosen: Tensor, rows: Tensor) -> None:
        """By verify, behind what its stream runs now."""
        self._place(slot, 0, chosen.shape, torch.int32).copy_(chosen, non_blocking=True)
        self._place(slot, shape.rows_at, rows.shape, rows.dtype).copy_(rows, non_blocking=True)
        self._set(_CHOSEN + 4 * slot, number)

    def chosen(self, slot: int, number: int, shape: EarlyShape) -> tuple[Tensor, Tensor]:
        """By the draft: as they were told, on its device once its stream has waited for them."""
        self._wait(_CHOSEN + 4 * slot, number)
        rows = (shape.sessions * shape.width, shape.hidden)
        return (
            self._copy(slot, 0, (shape.sessions, shape.width + 2), torch.int32),
            self._copy(slot, shape.rows_at, rows, shape.dtype),
        )

    def propose(self, slot: int, number: int, shape: EarlyShape, ids: Tensor) -> None:
        """By the draft, behind what its stream runs now: ids [sessions, count] int32."""
        self._place(slot, shape.proposals_at, ids.shape, torch.int32).copy_(ids, non_blocking=True)
        self._set(_PROPOSED + 4 * slot, number)

    def proposed(self, slot: int, number: int, shape: EarlyShape) -> Tensor:
        """By verify: as they were proposed, as `chosen`."""
        self._wait(_PROPOSED + 4 * slot, number)
        ids = (shape.sessions, shape.count)
        return self._copy(slot, shape.proposals_at, ids, torch.int32)

    def _place(self, slot: int, behind: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        first, count = HEADER_BYTES + slot * self._slot_bytes + behind, torch.Size(shape).numel()
        flat = torch.frombuffer(self._segment.bytes, dtype=dtype, count=count, offset=first)
        return flat.view(*shape)

    def _copy(self, slot: int, behind: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        there = self._place(slot, behind, shape, dtype)
        return there.to(self._device, non_blocking=True, copy=True)

    def _set(self, flag: int, number: int) -> None:
        with self._segment.pinning():
            driver.set_flag(self._stream(), self._segment.address() + flag, number % _NUMBERS)

    def _wait(self, flag: int, number: int) -> None:
        with self._segment.pinning():
            driver.wait_flag(self._stream(), self._segment.address() + flag, number % _NUMBERS)
        self._waited[flag] = number % _NUMBERS

    def _is_set(self, flag: int) -> bool:
        return (self._word(flag).value - self._waited.get(flag, 0)) % _NUMBERS < _NUMBERS // 2

    def _word(self, flag: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self._segment.bytes, flag)

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
