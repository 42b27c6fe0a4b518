"""Verify's end of a draft stream: rows in, the contract's tensors out, in memory both have mapped.

Called by verify_service.draft_link; serving.transport.receiver takes them.
"""

import logging
import threading

from torch import Tensor

from domino_serve.v1 import draft_pb2, tensor_pb2
from serving.tensors import data_type, to_message
from serving.transport.plane import FIELDS, INLINE, OwnMemory, Plane
from serving.transport.slots import Slots

log = logging.getLogger(__name__)


class Sender:
    """Inline until memory is agreed, and for whatever does not fit a slot.

    `close` is safe from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: OwnMemory | None = None
        self._slots, self._slot_bytes = Slots(0), 0

    @property
    def plane(self) -> Plane:
        """How rows travel."""
        return self._memory.plane if self._memory else INLINE

    def agree(self, memory: OwnMemory, answer: draft_pb2.StepResponse) -> str | None:
        """Uses the memory from here on if the draft has proved that it maps it; else why not."""
        memory.answered()
        if answer.offer.nonce != memory.nonce:
            memory.close()
            return answer.offer.refusal or "the draft found another nonce in it"
        offer = memory.offer()
        self._memory, self._slots = memory, Slots(offer.slots)
        self._slot_bytes = int(offer.slot_bytes)
        return None

    def put(self, rows: Tensor, sequence_number: int) -> tensor_pb2.Tensor:
        """Rows [n, hidden] for the message of that number."""
        if rows.nbytes <= self._slot_bytes:
            with self._lock:  # memory that is closed meanwhile would be another stream's
                if self._memory:
                    return self._pointer(self._memory, rows, sequence_number) or to_message(rows)
        return to_message(rows)

    def answered(self, sequence_number: int) -> None:
        """The draft has answered this message, and with it every one before."""
        self._slots.answered(sequence_number)

    def close(self) -> None:
        """Inline from here on."""
        with self._lock:
            memory, self._memory = self._memory, None
        if memory:
            memory.close()

    def _pointer(
        self, memory: OwnMemory, rows: Tensor, sequence_number: int
    ) -> tensor_pb2.Tensor | None:
        """To a slot with the rows; None where all slots wait for their answers."""
        slot = self._slots.take(sequence_number)
        if slot is None:
            return None
        try:
            memory.fill(slot, rows, sequence_number)
        except RuntimeError as error:
            log.warning("rows go inline from here on: %s", error)
            self._memory = None
            memory.close()
            return None
        message = tensor_pb2.Tensor(dtype=data_type(rows), shape=rows.shape)
        place = tensor_pb2.MemorySlot(slot=slot, sequence_number=sequence_number)
        getattr(message, FIELDS[memory.plane]).CopyFrom(place)
        return message
