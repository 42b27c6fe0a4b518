"""Rows in GPU memory: verify's GPU fills a slot, the draft's copies out of it; no host in between.

Order without waiting: an event is recorded behind what fills a slot, and the draft's stream waits
for it; a slot is filled again only when the draft has answered, whose copy is done by then.
"""

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.transport import cuda_driver as driver
from serving.transport.plane import CUDA_IPC, HEADER_BYTES, NONCE_BYTES, SLOT_BYTES, SLOTS

_BLOCK_BYTES: Final = 2 << 20  # smaller allocations share a block, and a handle is a block's


@dataclass(frozen=True, slots=True)
class _Allocation:
    address: int
    filled: tuple[driver.Pointer, ...]  # each slot's event


class CudaPool:
    """A verify service's memories; those that streams no longer use are used again.

    Freeing one would be undefined while another process still has it open.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.number = device, number_of(device)
        self._idle: list[_Allocation] = []
        self._lock = threading.Lock()

    def take(self) -> "OwnCuda":
        """Memory for one stream; raises RuntimeError."""
        with driver.current(self.number):
            with self._lock:
                allocation = self._idle.pop() if self._idle else _allocated()
            try:
                return OwnCuda(self, allocation)
            except RuntimeError:
                self.give_back(allocation)
                raise

    def give_back(self, allocation: _Allocation) -> None:
        with self._lock:
            self._idle.append(allocation)


class OwnCuda:
    """Verify's side."""

    plane = CUDA_IPC
    early = None
    join_s = 0.0

    def __init__(self, pool: CudaPool, allocation: _Allocation) -> None:
        self._pool, self._allocation = pool, allocation
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        nonce = torch.frombuffer(bytearray(self.nonce), dtype=torch.uint8).to(pool.device)
        driver.copy(allocation.address, nonce.data_ptr(), NONCE_BYTES, _stream(pool.device))
        torch.cuda.current_stream(pool.device).synchronize()

    def offer(self) -> draft_pb2.MemoryOffer:
        with driver.current(self._pool.number):
            memory = draft_pb2.CudaIpcMemory(
                memory=driver.memory_handle(self._allocation.address),
                filled=map(driver.event_handle, self._allocation.filled),
            )
        return draft_pb2.MemoryOffer(cuda_ipc=memory, slots=SLOTS, slot_bytes=SLOT_BYTES)

    def answered(self) -> None:
        """Handles are no names: nobody else can have this one."""

    def fill(self, slot: int, rows: Tensor, sequence_number: int) -> None:
        rows, stream = rows.contiguous(), _stream(self._pool.device)
        with driver.current(self._pool.number):
            driver.copy(
                _place(self._allocation.address, slot), rows.data_ptr(), rows.nbytes, stream
            )
            driver.record(self._allocation.filled[slot], stream)

    def close(self) -> None:
        self._pool.give_back(self._allocation)


class MappedCuda:
    """The draft's side."""

    plane = CUDA_IPC
    early = None

    def __init__(self, offer: draft_pb2.MemoryOffer, device: torch.device) -> None:
        """Raises ValueError for what is no offer, RuntimeError of CUDA."""
        if len(offer.cuda_ipc.filled) != offer.slots:
            raise ValueError(f"{len(offer.cuda_ipc.filled)} events for {offer.slots} slots")
        self._device, self._number = device, number_of(device)
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._events: list[driver.Pointer] = []
        with driver.current(self._number):
            self._address = driver.open_memory(offer.cuda_ipc.memory)
            try:
                self.nonce = self._check(offer)
            except (RuntimeError, ValueError):
                self.close()
                raise

    def _check(self, offer: draft_pb2.MemoryOffer) -> bytes:
        size, found = HEADER_BYTES + offer.slots * offer.slot_bytes, driver.size_of(self._address)
        if found < size:
            raise ValueError(f"it has {found} bytes, not {size}")
        self._slot_bytes = int(offer.slot_bytes)
        self._events += map(driver.open_event, offer.cuda_ipc.filled)
        nonce = torch.empty(NONCE_BYTES, dtype=torch.uint8, device=self._device)
        driver.copy(nonce.data_ptr(), self._address, NONCE_BYTES, _stream(self._device))
        return bytes(nonce.tolist())

    def read(
        self, slot: int, sequence_number: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """A copy on the draft's GPU."""
        rows, stream = torch.empty(*shape, dtype=dtype, device=self._device), _stream(self._device)
        with driver.current(self._number):
            driver.wait(stream, self._events[slot])
            source = _place(self._address, slot, self._slot_bytes)
            driver.copy(rows.data_ptr(), source, rows.nbytes, stream)
            self._read.record(torch.cuda.current_stream(self._device))
        return rows

    def release(self) -> None:
        self._read.synchronize()

    def close(self) -> None:
        with driver.current(self._number):
            self.release()
            for event in self._events:
                driver.close_event(event)
            driver.close_memory(self._address)


def number_of(device: torch.device) -> int:
    """The driver's number of torch's device."""
    return torch.cuda.current_device() if device.index is None else device.index


def _allocated() -> _Allocation:
    size = HEADER_BYTES + SLOTS * SLOT_BYTES
    address = driver.allocate(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES)
    return _Allocation(address, tuple(driver.new_event() for _ in range(SLOTS)))


def _place(address: int, slot: int, slot_bytes: int = SLOT_BYTES) -> int:
    return address + HEADER_BYTES + slot * slot_bytes


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
