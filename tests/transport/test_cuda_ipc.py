"""Rows through GPU memory and pinned memory, on a driver made of this process' own memory."""

import ctypes
import re

import pytest
import torch

from domino_serve.v1 import draft_pb2
from serving.errors import BadRequest
from serving.metrics import IPC_HANDLES
from serving.transport import cuda_driver, segment
from serving.transport.cuda_ipc import CudaPool, MappedCuda
from serving.transport.plane import CUDA_IPC, INLINE
from serving.transport.receiver import Receiver
from serving.transport.sender import Sender
from tests.transport.fake_driver import COMPILER, DEVICE
from tests.transport.memory import COLUMNS, Pair, numbers

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the fake driver is compiled"),
    pytest.mark.usefixtures("driver"),
]


def pair(pool: CudaPool) -> Pair:
    sender, receiver = Sender(), Receiver({CUDA_IPC: lambda offer: MappedCuda(offer, DEVICE)})
    memory = pool.take()
    answer = draft_pb2.StepResponse(offer=receiver.answer(memory.offer()))
    assert sender.agree(memory, answer) is None, answer
    return Pair(sender, receiver)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_arrive_as_they_were(dtype: torch.dtype) -> None:
    """Prevents rows of another slot, a copy before its event, and one that is cut."""
    both = pair(CudaPool(DEVICE))
    sent = [numbers(count, dtype) + count for count in (1, 500)]
    messages = [both.message(rows, number) for number, rows in enumerate(sent, start=1)]
    assert {m.rows.WhichOneof("payload") for m in messages} == {"cuda_ipc"}
    assert len({m.rows.cuda_ipc.slot for m in messages}) == 2
    for message, rows in zip(messages, sent, strict=True):
        assert torch.equal(both.taken(message, dtype), rows)
    both.sender.answered(2)
    assert torch.equal(both.taken(both.message(numbers(9)[::2], 3)), numbers(9)[::2])


def test_what_was_taken_stays_when_the_slot_is_filled_again() -> None:
    """A graph reads the rows after the next message may have come."""
    both = pair(CudaPool(DEVICE))
    taken = []
    for number in range(1, 5):
        taken.append(both.taken(both.message(numbers(3) + number, number)))
        both.receiver.release()
        both.sender.answered(number)
    assert all(torch.equal(rows, numbers(3) + n) for n, rows in enumerate(taken, start=1))


def test_memory_is_used_again_and_nothing_stays_open(driver: ctypes.CDLL) -> None:
    """Each draft that comes and goes would cost 32 MiB of GPU memory; freeing it is not allowed."""
    pool = CudaPool(DEVICE)
    handles, before = set(), counts()
    for _ in range(3):
        both = pair(pool)
        handles.add(pool_handle(both))
        assert (driver.fake_opened(), driver.fake_events()) == (1, 2)
        assert counts() == (before[0] + 1, before[1] + 2, before[2] + 1)
        both.sender.close()
        both.receiver.close()
        assert (driver.fake_opened(), driver.fake_events()) == (0, 0)
        assert counts() == (*before[:2], before[2] + 1)
        assert both.sender.plane == INLINE
    assert len(handles) == 1


def counts() -> tuple[float, ...]:
    """As the metrics tell them: memory and events of others, and own memory."""
    return tuple(IPC_HANDLES.read()[kind,] for kind in ("memory", "event", "own_memory"))


def test_memory_that_cannot_be_prepared_is_kept_for_the_next_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU that was full for a moment would lose 32 MiB more at each attempt."""
    pool = CudaPool(DEVICE)
    pool.give_back(pool.take()._allocation)
    own = counts()[2]

    def full(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(cuda_driver, "copy", full)
        pool.take()
    pool.take()
    assert counts()[2] == own


def pool_handle(both: Pair) -> bytes:
    memory = both.sender._memory
    assert memory is not None
    return memory.offer().cuda_ipc.memory


def offer_of(pool: CudaPool) -> draft_pb2.MemoryOffer:
    return pool.take().offer()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"memory": b"short"}, "has 64 bytes, not 5"),
        ({"memory": bytes(64)}, r"cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE \(1\)"),
        ({"filled": [bytes(64)] * 2}, "cuIpcOpenEventHandle: CUDA_ERROR_INVALID_VALUE"),
        ({"filled": []}, "0 events for 2 slots"),
    ],
)
def test_offers_are_not_believed(
    spoil: dict[str, object], reason: str, driver: ctypes.CDLL
) -> None:
    """Garbage must be an answer, and leave nothing open."""
    offer = offer_of(CudaPool(DEVICE))
    whole = {"memory": offer.cuda_ipc.memory, "filled": list(offer.cuda_ipc.filled)} | spoil
    offer.cuda_ipc.CopyFrom(draft_pb2.CudaIpcMemory(**whole))  # type: ignore[arg-type]
    receiver = Receiver({CUDA_IPC: lambda offer: MappedCuda(offer, DEVICE)})
    answer = receiver.answer(offer)
    assert re.search(reason, answer.refusal)
    assert (driver.fake_opened(), driver.fake_events()) == (0, 0)


def test_memory_smaller_than_said_is_refused(driver: ctypes.CDLL) -> None:
    """Reading behind it would be a fault of the whole GPU."""
    offer = offer_of(CudaPool(DEVICE))
    offer.slots += 1
    offer.cuda_ipc.filled.append(offer.cuda_ipc.filled[0])
    answer = Receiver({CUDA_IPC: lambda offer: MappedCuda(offer, DEVICE)}).answer(offer)
    assert "bytes, not" in answer.refusal
    assert (driver.fake_opened(), driver.fake_events()) == (0, 0)


def test_shared_memory_is_pinned_as_long_as_it_is_mapped(driver: ctypes.CDLL) -> None:
    """Copies through the driver's own buffer; memory that is unmapped while a GPU may write it."""
    made = segment.Segment.make(8192)
    made.pin(0)
    assert driver.fake_pinned() == 8192
    made.close()
    assert driver.fake_pinned() == 0


def test_shared_memory_that_cannot_be_pinned_is_used_as_it_is(
    driver: ctypes.CDLL, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on locked memory would leave rows inline, or end the stream."""
    driver.fake_refuse_pins()
    made = segment.Segment.make(8192)
    made.pin(0)
    assert "not pinned" in caplog.text
    made.bytes[:3] = b"abc"
    made.close()


def test_another_process_memory_is_told_by_its_nonce() -> None:
    """A handle of another host may open what happens to be there."""
    pool = CudaPool(DEVICE)
    memory, other = pool.take(), pool.take()
    receiver = Receiver({CUDA_IPC: lambda offer: MappedCuda(offer, DEVICE)})
    answer = draft_pb2.StepResponse(offer=receiver.answer(other.offer()))
    assert Sender().agree(memory, answer) == "the draft found another nonce in it"


def test_the_columns_of_rows_are_checked_first() -> None:
    """The copy's size comes from the message."""
    both = pair(CudaPool(DEVICE))
    message = both.message(numbers(2), 1)
    message.rows.shape[0] = 1 << 40
    with pytest.raises(BadRequest, match="exceed 2 slots of 16777216 bytes"):
        both.taken(message)
    assert both.taken(both.message(numbers(2), 2)).shape == (2, COLUMNS)
