"""Verify's end of a draft stream: rows in, the contract's tensors out, in memory both have mapped.

Called by verify_service.draft_link; serving.transport.receiver takes them.
"""

import logging
import threading

from torch import Tensor

from domino_serve.v1 import draft_pb2, tensor_pb2
from serving.tensors import data_type, put_inline
from serving.transport.early import EarlyShape
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
        self._told: tuple[int, int, EarlyShape] | None = None  # slot and number of the last one

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

    def put(self, rows: Tensor, request: draft_pb2.StepRequest) -> None:
        """Rows [n, hidden] into a numbered message that has none yet."""
        if rows.nbytes <= self._slot_bytes:
            with self._lock:  # memory that is closed meanwhile would be another stream's
                if self._memory and self._point(self._memory, rows, request):
                    return
        put_inline(rows, request.rows)

    @property
    def tells_early(self) -> bool:
        """Whether `put_early` can do anything."""
        return self._memory is not None and self._memory.early is not None

    def put_early(
        self, chosen: Tensor, rows: Tensor, count: int, request: draft_pb2.StepRequest
    ) -> bool:
        """Into a numbered message that begins `count` proposals: what a pass that runs will have
        chosen, [sessions, width + 2] int32, and the rows of all its ids. False where it cannot be
        told early."""
        sessions, columns = chosen.shape
        shape = EarlyShape(
            sessions=sessions,
            width=columns - 2,
            count=count,
            hidden=rows.shape[1],
            dtype=rows.dtype,
        )
        with self._lock:
            early = self._memory.early if self._memory else None
            if early is None or not early.fits(shape):
                return False
            number = request.sequence_number
            slot = self._slots.take(number)
            if slot is None:
                return False
            early.tell(slot, number, shape, chosen, rows)
            request.early.slot.CopyFrom(tensor_pb2.MemorySlot(slot=slot, sequence_number=number))
            self._told = slot, number, shape
            return True

    def proposed(self) -> Tensor | None:
        """What the draft's GPU proposes to what was told last, on the device once its stream has
        waited for it; None where the memory was closed."""
        with self._lock:
            early = self._memory.early if self._memory else None
            return early.proposed(*self._told) if early and self._told else None

    def let_go(self) -> None:
        """Ends every wait of the device for proposals."""
        with self._lock:
            if self._memory and self._memory.early:
                self._memory.early.let_go()

    def answered(self, sequence_number: int) -> None:
        """The draft has answered this message, and with it every one before."""
        self._slots.answered(sequence_number)

    def close(self) -> None:
        """Inline from here on."""
        with self._lock:
            memory, self._memory = self._memory, None
        if memory:
            memory.close()

    def _point(self, memory: OwnMemory, rows: Tensor, request: draft_pb2.StepRequest) -> bool:
        """Points to a slot with the rows; False where all slots wait for their answers."""
        number = request.sequence_number
        slot = self._slots.take(number)
        if slot is None:
            return False
        try:
            memory.fill(slot, rows, number)
        except RuntimeError as error:
            log.warning("rows go inline from here on: %s", error)
            self._memory = None
            memory.close()
            return False
        request.rows.dtype = data_type(rows)
        request.rows.shape.extend(rows.shape)
        place = tensor_pb2.MemorySlot(slot=slot, sequence_number=number)
        getattr(request.rows, FIELDS[memory.plane]).CopyFrom(place)
        return True
