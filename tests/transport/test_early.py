"""Passes told before they have ended, on a driver made of this process' own memory."""

import ctypes

import pytest
import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.errors import BadRequest
from serving.transport.plane import SHM
from serving.transport.receiver import Receiver
from serving.transport.sender import Sender
from serving.transport.shm import MappedShm, OwnShm
from tests.transport.fake_driver import COMPILER, DEVICE
from tests.transport.memory import COLUMNS, Pair, numbers

SESSIONS, WIDTH, COUNT = 3, 4, 3

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the fake driver is compiled"),
    pytest.mark.usefixtures("driver"),
]


def pair(*, slot_bytes: int = 4096) -> Pair:
    sender, memory = Sender(), OwnShm(slots=2, slot_bytes=slot_bytes, device=DEVICE)
    receiver = Receiver({SHM: lambda offer: MappedShm(offer, DEVICE)})
    answer = draft_pb2.StepResponse(offer=receiver.answer(memory.offer()))
    assert sender.agree(memory, answer) is None
    return Pair(sender, receiver)


def chosen(first: int) -> Tensor:
    """[SESSIONS, WIDTH + 2] that differ everywhere."""
    count = SESSIONS * (WIDTH + 2)
    return torch.arange(first, first + count, dtype=torch.int32).view(SESSIONS, WIDTH + 2)


def told(both: Pair, number: int, rows: Tensor) -> draft_pb2.StepRequest | None:
    """The message; None where it cannot be told."""
    request = draft_pb2.StepRequest(sequence_number=number)
    request.early.sessions.extend(range(SESSIONS))
    request.early.width = WIDTH
    request.early.draft_tokens = COUNT
    return request if both.sender.put_early(chosen(number), rows, COUNT, request) else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_told_arrives_as_it_was(dtype: torch.dtype) -> None:
    """Rows of another slot or place would only lower acceptance; so would another step's choice."""
    both = pair()
    for number in (1, 2, 3):
        rows = numbers(SESSIONS * WIDTH, dtype) + number
        request = told(both, number, rows)
        assert request is not None
        found = both.receiver.early(request, COLUMNS, dtype)
        assert found is not None and both.receiver.is_told
        assert torch.equal(found[0], chosen(number)) and torch.equal(found[1], rows)
        both.sender.answered(number)


def test_a_pass_that_runs_on_is_not_written_until_it_ends(driver: ctypes.CDLL) -> None:
    """Half of a pass: the flag of an older step in the same slot must not stand for it."""
    both = pair()
    rows = numbers(SESSIONS * WIDTH)
    for number in (1, 2):
        request = told(both, number, rows)
        assert request is not None
        both.receiver.early(request, COLUMNS, torch.float32)
        both.sender.answered(number)
    driver.fake_run_on()
    request = told(both, 3, rows)
    assert request is not None
    both.receiver.early(request, COLUMNS, torch.float32)
    assert not both.receiver.is_told
    driver.fake_end()
    assert both.receiver.is_told


def test_nobody_waits_for_a_peer_that_died(driver: ctypes.CDLL) -> None:
    """A GPU that waits for a killed process' flag would stand still for every other stream."""
    both = pair()
    driver.fake_run_on()
    request = told(both, 1, numbers(SESSIONS * WIDTH))
    assert request is not None
    both.receiver.early(request, COLUMNS, torch.float32)
    assert not both.receiver.is_told
    both.receiver.let_go()
    assert both.receiver.is_told
    both.receiver.close()


def test_proposals_come_back_as_they_were(driver: ctypes.CDLL) -> None:
    """Another step's proposals, or rows that lie beside them, would be verified."""
    both = pair()
    rows = numbers(SESSIONS * WIDTH)
    for number in (1, 2, 3):
        request = told(both, number, rows)
        assert request is not None
        both.receiver.early(request, COLUMNS, torch.float32)
        ids = torch.arange(SESSIONS * COUNT, dtype=torch.int32).view(SESSIONS, COUNT) + number
        both.receiver.propose(ids)
        found = both.sender.proposed()
        assert found is not None and torch.equal(found, ids)
        both.sender.answered(number)


def test_a_target_waits_for_no_draft_that_died(driver: ctypes.CDLL) -> None:
    """Losing a draft costs speed: the target's GPU goes on when the link is given up."""
    both = pair()
    assert told(both, 1, numbers(SESSIONS * WIDTH)) is not None
    memory = both.sender._memory
    assert memory is not None and memory.early is not None
    early = memory.early
    assert both.sender.proposed() is not None
    assert not early._is_set(2048 + 4)
    both.sender.let_go()
    assert early._is_set(2048 + 4)
    both.sender.close()
    assert both.sender.proposed() is None


def test_slots_are_shared_with_rows_that_are_asked_for() -> None:
    """A slot that the draft still reads, filled with the next step."""
    both = pair()
    rows = numbers(SESSIONS * WIDTH)
    first = told(both, 1, rows)
    second = both.message(numbers(2), 2)
    assert first is not None and first.early.slot.slot != second.rows.shm.slot
    assert told(both, 3, rows) is None
    both.sender.answered(2)
    assert told(both, 3, rows) is not None


def test_what_does_not_fit_a_slot_is_not_told() -> None:
    """Wide steps of many sessions; they are asked for when they have ended."""
    both = pair(slot_bytes=256 + 512 + 4 * SESSIONS * COUNT)
    assert SESSIONS * WIDTH * COLUMNS * 4 == 384
    assert told(both, 1, numbers(SESSIONS * WIDTH)) is not None
    both.sender.answered(1)
    assert told(both, 2, numbers(SESSIONS * WIDTH, torch.float64)) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"width": 0}, "early.width"),
        ({"width": 1 << 40}, "early.width"),
        ({"width": 1000}, "exceed 2 slots of 4096 bytes"),
        ({"count": 0}, "early.draft_tokens"),
        ({"count": 1000}, "exceed 2 slots of 4096 bytes"),
        ({"slot": 7}, "exceed 2 slots"),
        ({"number": 3}, "was filled for message 3, not 1"),
    ],
)
def test_nothing_of_a_message_is_believed(change: dict[str, int], error: str) -> None:
    """The copy's place and size come from the message."""
    both = pair()
    request = told(both, 1, numbers(SESSIONS * WIDTH))
    assert request is not None
    early = request.early
    early.width, early.draft_tokens = change.get("width", WIDTH), change.get("count", COUNT)
    early.slot.slot = change.get("slot", early.slot.slot)
    early.slot.sequence_number = change.get("number", 1)
    with pytest.raises(BadRequest, match=error):
        both.receiver.early(request, COLUMNS, torch.float32)


def test_memory_that_is_not_pinned_tells_nothing_early(driver: ctypes.CDLL) -> None:
    """Copies to it would wait for the pass."""
    driver.fake_refuse_pins()
    both = pair()
    assert not both.sender.tells_early
    assert told(both, 1, numbers(SESSIONS * WIDTH)) is None
    request = draft_pb2.StepRequest(sequence_number=1)
    assert both.receiver.early(request, COLUMNS, torch.float32) is None
