"""Rows from host to host: verify's GPU sends them to the draft's by NCCL, on CPUs over TCP.

A pair of ranks for each stream, made while the two agree, so that services come and go as they do.
Nothing is shared: what was staged in a slot is sent, and a thread sees that it is taken in time.
"""

import logging
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.errors import BadRequest
from serving.transport.nccl_pair import NcclPair
from serving.transport.pair import Pair, PairLost
from serving.transport.plane import NCCL, NONCE_BYTES, SLOT_BYTES, SLOTS
from serving.transport.tcp_pair import TcpPair

HEAD_BYTES: Final = 128  # before the tensor, in the contract
JOIN_S: Final = 5.0  # NCCL takes a second or two for the first pair of a process
MOVE_S: Final = 5.0  # one buffer takes milliseconds
_END_S: Final = 1.0

log = logging.getLogger(__name__)


class OwnNccl:
    """Verify's side."""

    plane = NCCL
    early = None
    join_s = JOIN_S

    def __init__(self, device: torch.device, *, slot_bytes: int = SLOT_BYTES) -> None:
        """Raises OSError, RuntimeError."""
        size = HEAD_BYTES + slot_bytes
        self._staged = torch.empty(SLOTS, size, dtype=torch.uint8, device=device)
        pair = NcclPair.offered(device) if device.type == "cuda" else TcpPair.offered()
        self._pair: Pair = pair
        self._slot_bytes, self._group = slot_bytes, pair.group()
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._begun = queue.SimpleQueue[Tensor | None]()
        self._lost: RuntimeError | None = None
        nonce = torch.frombuffer(bytearray(self.nonce), dtype=torch.uint8).to(device)
        first = self._staged_in(0, 0, nonce)
        self._sending = threading.Thread(target=self._send, args=(first,), name="rows", daemon=True)
        self._sending.start()

    def offer(self) -> draft_pb2.MemoryOffer:
        return draft_pb2.MemoryOffer(nccl=self._group, slots=SLOTS, slot_bytes=self._slot_bytes)

    def answered(self) -> None:
        """Who has joined has; nobody else can."""

    def fill(self, slot: int, rows: Tensor, sequence_number: int) -> None:
        if self._lost:
            raise self._lost
        content = rows.detach().contiguous().view(-1).view(torch.uint8)
        # By this thread: another would get its turn behind those that stream tokens.
        self._begin(self._staged_in(slot, sequence_number, content))

    def close(self) -> None:
        self._lost = self._lost or PairLost("was closed")
        self._begun.put(None)
        self._pair.close()
        self._sending.join(_END_S)  # inside torch at the process' end it would take that down

    def _begin(self, buffer: Tensor) -> None:
        self._pair.begin(buffer)
        self._begun.put(buffer)

    def _staged_in(self, slot: int, number: int, content: Tensor) -> Tensor:
        """Copied here and now: the next pass may write over the rows before they are sent."""
        buffer = self._staged[slot, : HEAD_BYTES + content.nbytes]
        head = buffer[:16].view(torch.int64)
        head[0], head[1] = number, content.nbytes
        if buffer.is_cuda:
            buffer[HEAD_BYTES:].copy_(content)
        else:  # torch's own copy may wake a thread on every core
            np.copyto(buffer[HEAD_BYTES:].numpy(), content.numpy())
        return buffer

    def _send(self, first: Tensor) -> None:
        """Joins, sends the first buffer, and sees that what has begun ends."""
        try:
            self._pair.join(time.monotonic() + JOIN_S)
            self._begin(first)
            while (buffer := self._begun.get()) is not None:
                self._pair.finish(buffer, time.monotonic() + MOVE_S)
        except RuntimeError as error:
            if not self._lost:
                self._lost = error
                log.warning("rows cannot be sent to a draft service: %s", error)
        finally:
            self._pair.close()


class MappedNccl:
    """The draft's side."""

    plane = NCCL
    early = None

    def __init__(self, offer: draft_pb2.MemoryOffer, device: torch.device) -> None:
        """Joins; raises ValueError for what is no such group, RuntimeError."""
        size, on_gpu = HEAD_BYTES + int(offer.slot_bytes), device.type == "cuda"
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)
        self._pair: Pair = NcclPair.of(offer.nccl, device) if on_gpu else TcpPair.of(offer.nccl)
        until = time.monotonic() + JOIN_S
        try:
            self._pair.join(until)
            self.nonce = bytes(self._received(0, NONCE_BYTES, until).tolist())
        except RuntimeError:
            self.close()
            raise

    def read(
        self, slot: int, sequence_number: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """Ends the pair where anything else comes, or nothing does."""
        size, until = prod(shape) * dtype.itemsize, time.monotonic() + MOVE_S
        try:
            return self._received(sequence_number, size, until).view(dtype).view(*shape)
        except PairLost as error:
            self.close()
            raise BadRequest("rows.nccl", str(error)) from None

    def release(self) -> None:
        """Nothing to wait for: a draft's step ends when its GPU has answered."""

    def close(self) -> None:
        self._pair.close()

    def _received(self, number: int, size: int, until: float) -> Tensor:
        """The next buffer's content, uint8 [size]; raises PairLost for one that is not that."""
        buffer = self._buffer[: HEAD_BYTES + size]
        self._pair.receive(buffer, until)
        found_number, found_size = buffer[:16].view(torch.int64).tolist()
        if (found_number, found_size) != (number, size):
            found = f"{found_size} bytes of message {found_number}"
            raise PairLost(f"holds {found}, not {size} of message {number}")
        return buffer[HEAD_BYTES:]
