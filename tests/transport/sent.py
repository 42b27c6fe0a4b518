"""A sender and a receiver that rows are sent between, by TCP, by NCCL, or by what is like NCCL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import pytest
import torch

from domino_serve.v1 import draft_pb2
from serving.transport.nccl import MappedNccl, OwnNccl
from serving.transport.plane import NCCL
from serving.transport.receiver import Receiver
from serving.transport.sender import Sender
from tests.transport.memory import Pair

CPU: Final = torch.device("cpu")
SOON_S: Final = 0.3
Devices: TypeAlias = tuple[torch.device, torch.device]  # verify's and the draft's
GPUS = pytest.param(
    "gpus",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    ],
)


def receiver(devices: Devices) -> Receiver:
    """Of a draft service."""
    return Receiver({NCCL: lambda offer: MappedNccl(offer, devices[1])})


@contextmanager
def pair(devices: Devices) -> Iterator[Pair]:
    """Agreed as two services agree."""
    sender, draft, memory = Sender(), receiver(devices), OwnNccl(devices[0])
    try:
        answer = draft_pb2.StepResponse(offer=draft.answer(memory.offer()))
        assert sender.agree(memory, answer) is None, answer
        yield Pair(sender, draft)
    finally:
        memory.close()
        draft.close()
