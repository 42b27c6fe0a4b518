"""Rows in shared memory: verify copies them into a slot, the draft reads them where they lie.

Beside a GPU it is pinned by both: verify's GPU writes it, the draft's reads it.
"""

import secrets
import struct
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.errors import BadRequest
from serving.transport.cuda_ipc import number_of
from serving.transport.early import Early
from serving.transport.plane import HEADER_BYTES, NONCE_BYTES, SHM, SLOT_BYTES, SLOTS
from serving.transport.segment import Segment

_CPU: Final = torch.device("cpu")
_FILLED_FOR: Final = struct.Struct("<Q")  # a message's number, one a slot, behind the nonce


class OwnShm:
    """Verify's side."""

    plane = SHM
    join_s = 0.0

    def __init__(
        self,
        *,
        slots: int = SLOTS,
        slot_bytes: int = SLOT_BYTES,
        device: torch.device = _CPU,
    ) -> None:
        """Raises OSError, as where /dev/shm is full. device: where rows come from."""
        self._slots, self._slot_bytes = slots, slot_bytes
        self._segment = Segment.make(HEADER_BYTES + slots * slot_bytes)
        _pin(self._segment, device)
        pinned = self._segment.is_pinned
        self.early = Early(self._segment, slot_bytes, device) if pinned else None
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._segment.bytes[:NONCE_BYTES] = self.nonce
        self._bytes = np.frombuffer(self._segment.bytes, np.uint8)

    def offer(self) -> draft_pb2.MemoryOffer:
        return draft_pb2.MemoryOffer(
            shm=draft_pb2.SharedMemory(name=self._segment.name),
            slots=self._slots,
            slot_bytes=self._slot_bytes,
        )

    def answered(self) -> None:
        self._segment.unlink()

    def fill(self, slot: int, rows: Tensor, sequence_number: int) -> None:
        first = HEADER_BYTES + slot * self._slot_bytes
        place = self._bytes[first : first + rows.nbytes]
        if rows.is_cuda:
            torch.from_numpy(place).view(rows.dtype).view(rows.shape).copy_(rows)
        else:  # torch's own copy may wake a thread on every core
            np.copyto(place, rows.detach().contiguous().view(torch.uint8).numpy().reshape(-1))
        _FILLED_FOR.pack_into(self._segment.bytes, _place(slot), sequence_number)

    def close(self) -> None:
        if self.early:
            self.early.close()
        del self._bytes
        self._segment.close()


class MappedShm:
    """The draft's side."""

    plane = SHM

    def __init__(self, offer: draft_pb2.MemoryOffer, device: torch.device = _CPU) -> None:
        """Raises ValueError for an offer of no segment of ours, OSError where there is none.

        device: where rows go.
        """
        self._slot_bytes = offer.slot_bytes
        size = HEADER_BYTES + offer.slots * offer.slot_bytes
        self._segment = Segment.open(offer.shm.name, size)
        _pin(self._segment, device)
        pinned = self._segment.is_pinned
        self.early = Early(self._segment, offer.slot_bytes, device) if pinned else None
        self.nonce = self._segment.bytes[:NONCE_BYTES]

    def read(
        self, slot: int, sequence_number: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        (filled_for,) = _FILLED_FOR.unpack_from(self._segment.bytes, _place(slot))
        if filled_for != sequence_number:
            message = f"slot {slot} was filled for message {filled_for}, not {sequence_number}"
            raise BadRequest("rows.shm", message)
        first = HEADER_BYTES + slot * self._slot_bytes
        count = prod(shape)
        flat = torch.frombuffer(self._segment.bytes, dtype=dtype, count=count, offset=first)
        return flat.view(*shape)

    def release(self) -> None:
        """Nothing to wait for: a draft's step ends when its GPU has answered."""

    def close(self) -> None:
        if self.early:
            self.early.close()
        self._segment.close()


def _pin(segment: Segment, device: torch.device) -> None:
    if device.type == "cuda":
        segment.pin(number_of(device))


def _place(slot: int) -> int:
    return NONCE_BYTES + slot * _FILLED_FOR.size
