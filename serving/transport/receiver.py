"""The draft's end of a stream: offers of memory in, answers out; then rows out of messages.

Called by draft_service.servicer, by one thread at a time; nothing that comes in is trusted.
"""

import logging
from collections.abc import Mapping
from math import prod
from typing import Final

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2, tensor_pb2
from serving.errors import BadRequest
from serving.tensors import check_matrix, from_message
from serving.transport.early import EarlyShape
from serving.transport.plane import (
    MOST_SLOT_BYTES,
    MOST_SLOTS,
    NAMES,
    PLANES,
    MapMemory,
    MappedMemory,
    Plane,
)

MOST_WIDTH: Final = 1 << 10

log = logging.getLogger(__name__)


class Receiver:
    """kinds: what maps memory of each plane that this service takes."""

    def __init__(self, kinds: Mapping[Plane, MapMemory]) -> None:
        self._kinds = kinds
        self._memory: MappedMemory | None = None
        self._slots, self._slot_bytes = 0, 0
        self._told: tuple[int, int, EarlyShape] | None = None

    def answer(self, offer: draft_pb2.MemoryOffer) -> draft_pb2.MemoryAnswer:
        """Maps offered memory in place of what was mapped before; what was found, or why not."""
        self.close()
        try:
            self._memory = self._mapped(offer)
        except (OSError, ValueError, RuntimeError) as error:
            return draft_pb2.MemoryAnswer(refusal=f"{error!s:.200}")
        self._slots, self._slot_bytes = int(offer.slots), int(offer.slot_bytes)
        log.info("rows come by %s", NAMES[self._memory.plane])
        return draft_pb2.MemoryAnswer(nonce=self._memory.nonce)

    def rows(
        self, request: draft_pb2.StepRequest, columns: int, dtype: torch.dtype
    ) -> Tensor | None:
        """The message's rows [n, columns], None where it has none; raises BadRequest."""
        if not request.HasField("rows"):
            return None
        message, kind = request.rows, request.rows.WhichOneof("payload")
        if kind is None or kind == "inline":
            return from_message(message, "rows", columns, dtype)
        memory = self._memory
        if memory is None or memory.plane != PLANES[kind]:
            raise BadRequest(f"rows.{kind}", "points into memory that this stream does not share")
        shape = check_matrix(message, "rows", columns, dtype)
        place, number = getattr(message, kind), request.sequence_number
        slot = self._checked(place, f"rows.{kind}", prod(shape) * dtype.itemsize, number)
        return memory.read(slot, number, shape, dtype)

    def early(
        self, request: draft_pb2.StepRequest, columns: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """chosen [sessions, width + 2], rows [sessions * width, columns] of a pass that may still
        run, on the device, whose stream waits for it; None where that cannot be.

        Raises BadRequest.
        """
        message, early = request.early, self._memory.early if self._memory else None
        if early is None:
            return None
        for name in ("width", "draft_tokens"):
            if not 1 <= getattr(message, name) <= MOST_WIDTH:
                raise BadRequest(f"early.{name}", f"must be in 1..{MOST_WIDTH}")
        shape = EarlyShape(
            sessions=len(message.sessions),
            width=int(message.width),
            count=int(message.draft_tokens),
            hidden=columns,
            dtype=dtype,
        )
        number = request.sequence_number
        slot = self._checked(message.slot, "early.slot", shape.size, number)
        self._told = slot, number, shape
        return early.chosen(slot, number, shape)

    def propose(self, ids: Tensor) -> None:
        """Proposals [sessions, count] to what `early` took last, behind what the device runs."""
        if self._memory and self._memory.early and self._told:
            self._memory.early.propose(*self._told, ids)

    @property
    def is_told(self) -> bool:
        """Whether the device that waits for what `early` took last can go on."""
        early = self._memory.early if self._memory else None
        return early is None or self._told is None or early.is_chosen(self._told[0])

    def let_go(self) -> None:
        """Ends every wait of the device for a pass."""
        if self._memory and self._memory.early:
            self._memory.early.let_go()

    def release(self) -> None:
        """Returns when the rows taken so far are no longer needed where they lie."""
        if self._memory:
            self._memory.release()

    def close(self) -> None:
        """Unmaps what is mapped."""
        memory, self._memory = self._memory, None
        if memory:
            memory.close()

    def _mapped(self, offer: draft_pb2.MemoryOffer) -> MappedMemory:
        kind = offer.WhichOneof("memory")
        map_memory = self._kinds.get(PLANES[kind]) if kind else None
        if map_memory is None:
            raise ValueError(f"this draft service takes no {kind or 'unnamed'} memory")
        if not (0 < offer.slots <= MOST_SLOTS and 0 < offer.slot_bytes <= MOST_SLOT_BYTES):
            raise ValueError(f"{offer.slots} slots of {offer.slot_bytes} bytes are out of range")
        return map_memory(offer)

    def _checked(self, place: tensor_pb2.MemorySlot, field: str, size: int, number: int) -> int:
        """Its slot; number: of the message."""
        if place.sequence_number != number:
            stale = f"was filled for message {place.sequence_number}, not {number}"
            raise BadRequest(f"{field}.sequence_number", stale)
        if place.slot >= self._slots or size > self._slot_bytes:
            limits = f"{self._slots} slots of {self._slot_bytes} bytes"
            raise BadRequest(field, f"{size} bytes in slot {place.slot} exceed {limits}")
        return int(place.slot)
