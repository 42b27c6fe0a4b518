"""A sender and a receiver over shared memory for tests, agreed as two services agree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.transport.plane import SHM
from serving.transport.receiver import Receiver
from serving.transport.sender import Sender
from serving.transport.shm import MappedShm, OwnShm

COLUMNS = 8
SLOT_BYTES = 1024


@dataclass(slots=True)
class Pair:
    """Both ends."""

    sender: Sender
    receiver: Receiver

    def message(self, rows: Tensor, number: int) -> draft_pb2.StepRequest:
        """With rows [n, COLUMNS]."""
        request = draft_pb2.StepRequest(sequence_number=number)
        self.sender.put(rows, request)
        return request

    def taken(self, request: draft_pb2.StepRequest, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the draft's end makes of it."""
        rows = self.receiver.rows(request, COLUMNS, dtype)
        assert rows is not None
        return rows


def pair(slots: int = 2) -> Pair:
    """Shares slots of SLOT_BYTES."""
    sender, receiver, memory = Sender(), Receiver({SHM: MappedShm}), own(slots)
    answer = draft_pb2.StepResponse(offer=receiver.answer(memory.offer()))
    assert sender.agree(memory, answer) is None
    return Pair(sender, receiver)


def own(slots: int = 2) -> OwnShm:
    return OwnShm(slots=slots, slot_bytes=SLOT_BYTES)


def numbers(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows [count, COLUMNS] that differ everywhere."""
    return torch.arange(1, count * COLUMNS + 1).view(count, COLUMNS).to(dtype)
