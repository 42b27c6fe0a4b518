"""Rows through shared memory: the same bits, no slot too early, nothing believed, nothing left."""

import fcntl
import os
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from domino_serve.v1 import draft_pb2, tensor_pb2
from serving.errors import BadRequest
from serving.transport import segment
from serving.transport.plane import HEADER_BYTES, INLINE, SHM
from serving.transport.receiver import Receiver
from serving.transport.segment import PREFIX, Segment
from serving.transport.sender import Sender
from serving.transport.shm import MappedShm, OwnShm
from tests.transport.memory import COLUMNS, SLOT_BYTES, numbers, own, pair
from verify_service.draft_link import MAX_ROW_BYTES

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MAKE_AND_DIE = """
import os, pathlib, signal, sys
from serving.transport import segment
segment.FOLDER = pathlib.Path(sys.argv[1])
segment.Segment.make(4096)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In /dev/shm's place, where others work too; a name that stays is memory that is lost."""
    monkeypatch.setattr(segment, "FOLDER", tmp_path)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 7, SLOT_BYTES // COLUMNS // 4])
def test_rows_arrive_as_they_were(count: int, dtype: torch.dtype) -> None:
    """Prevents rows of another place, dtype or shape, in any slot, up to a full one."""
    both = pair()
    for number in range(1, 6):
        rows = numbers(count, dtype) + number
        message = both.message(rows, number)
        assert message.rows.WhichOneof("payload") == "shm"
        assert torch.equal(both.taken(message, dtype), rows)
        both.sender.answered(number)


def test_rows_that_are_a_view_arrive_too() -> None:
    """Rows out of pages need not lie one behind another."""
    both = pair()
    rows = numbers(10)[::3]
    assert torch.equal(both.taken(both.message(rows, 1)), rows)


def test_a_slot_is_filled_again_only_when_its_message_was_answered() -> None:
    """The draft would read the next step's rows, or half of each."""
    both = pair(slots=2)
    first, second = both.message(numbers(2), 1), both.message(numbers(2) + 50, 2)
    third = both.message(numbers(2) + 100, 3)
    assert third.rows.WhichOneof("payload") == "inline"
    assert torch.equal(both.taken(first), numbers(2))
    assert torch.equal(both.taken(second), numbers(2) + 50)
    assert torch.equal(both.taken(third), numbers(2) + 100)
    both.sender.answered(1)
    assert both.message(numbers(2), 4).rows.shm.slot == first.rows.shm.slot
    both.sender.answered(4)  # and with it 2: an answer that nobody waited for
    assert {both.message(numbers(1), n).rows.WhichOneof("payload") for n in (5, 6)} == {"shm"}


def test_a_whole_message_of_rows_fits() -> None:
    """A prompt's rows went inline, 16 MiB by protobuf: 50 ms of a step, as many as the target's."""
    memory, sender, receiver = OwnShm(), Sender(), Receiver({SHM: MappedShm})
    answer = draft_pb2.StepResponse(offer=receiver.answer(memory.offer()))
    assert sender.agree(memory, answer) is None
    message = draft_pb2.StepRequest(sequence_number=1)
    sender.put(torch.ones(MAX_ROW_BYTES // 8192, 4096, dtype=torch.bfloat16), message)
    assert message.rows.WhichOneof("payload") == "shm"
    sender.close()
    receiver.close()


def test_what_does_not_fit_a_slot_goes_inline() -> None:
    """Rows must neither be cut nor run into the next slot."""
    both = pair()
    rows = numbers(SLOT_BYTES // COLUMNS // 4 + 1)
    message = both.message(rows, 1)
    assert message.rows.WhichOneof("payload") == "inline"
    assert torch.equal(both.taken(message), rows)


def test_the_segment_is_its_users_alone_and_nameless_once_agreed(folder: Path) -> None:
    """Other users must not read what people write; a killed process must leave nothing."""
    memory = own()
    path = folder / memory.offer().shm.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    receiver = Receiver({SHM: MappedShm})
    answer = draft_pb2.StepResponse(offer=receiver.answer(memory.offer()))
    sender = Sender()
    assert sender.agree(memory, answer) is None
    assert not path.exists()
    assert sender.plane == SHM
    sender.close()
    assert sender.plane == INLINE


def test_another_nonce_is_another_hosts_memory() -> None:
    """Two hosts may both have a segment of one name; rows would go where nobody reads."""
    memory = own()
    sender = Sender()
    forged = draft_pb2.MemoryAnswer(nonce=secrets.token_bytes(32))
    refusal = sender.agree(memory, draft_pb2.StepResponse(offer=forged))
    assert refusal == "the draft found another nonce in it"
    assert sender.plane == INLINE
    request = draft_pb2.StepRequest(sequence_number=1)
    sender.put(numbers(1), request)
    assert request.rows.WhichOneof("payload") == "inline"


def test_a_draft_that_says_nothing_is_not_trusted_with_memory() -> None:
    """An older draft service ignores the offer."""
    sender = Sender()
    assert sender.agree(own(), draft_pb2.StepResponse())
    assert sender.plane == INLINE


BAD_OFFERS: dict[str, tuple[draft_pb2.MemoryOffer, str]] = {
    "nothing": (draft_pb2.MemoryOffer(slots=1, slot_bytes=8), "takes no unnamed memory"),
    "kind": (
        draft_pb2.MemoryOffer(cuda_ipc=draft_pb2.CudaIpcMemory(), slots=1, slot_bytes=8),
        "takes no cuda_ipc memory",
    ),
    "path": (
        draft_pb2.MemoryOffer(
            shm=draft_pb2.SharedMemory(name="../../etc/passwd"), slots=1, slot_bytes=8
        ),
        "is no name of a segment",
    ),
    "absent": (
        draft_pb2.MemoryOffer(
            shm=draft_pb2.SharedMemory(name=PREFIX + "0" * 32), slots=1, slot_bytes=8
        ),
        "No such file",
    ),
    "no slots": (
        draft_pb2.MemoryOffer(shm=draft_pb2.SharedMemory(name="x"), slots=0, slot_bytes=8),
        "out of range",
    ),
    "too large": (
        draft_pb2.MemoryOffer(shm=draft_pb2.SharedMemory(name="x"), slots=16, slot_bytes=1 << 40),
        "out of range",
    ),
}


@pytest.mark.parametrize("case", BAD_OFFERS)
def test_offers_are_not_believed(case: str) -> None:
    """Whoever may call a draft must not have it map files, or memory without a bound."""
    offer, reason = BAD_OFFERS[case]
    answer = Receiver({SHM: MappedShm}).answer(offer)
    assert reason in answer.refusal
    assert not answer.nonce


def test_a_segment_of_another_size_is_refused() -> None:
    """Reading behind its end would kill the draft service."""
    memory = own()
    offer = memory.offer()
    offer.slot_bytes *= 2
    answer = Receiver({SHM: MappedShm}).answer(offer)
    assert f"has {HEADER_BYTES + 2 * SLOT_BYTES} bytes, not" in answer.refusal
    memory.close()


def test_another_users_segment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could open everybody's."""
    memory = own()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "another user" in Receiver({SHM: MappedShm}).answer(memory.offer()).refusal
    memory.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda t: setattr(t.shm, "slot", 2), "in slot 2 exceed 2 slots"),
        (lambda t: setattr(t.shm, "slot", 2**32 - 1), "exceed 2 slots"),
        (lambda t: t.shape.__setitem__(0, 10**9), "exceed 2 slots of 1024 bytes"),
        (lambda t: t.shape.__setitem__(0, -1), r"shape: is \[-1, 8\]"),
        (lambda t: t.shape.__setitem__(1, 9), r"shape: is \[2, 9\]"),
        (lambda t: setattr(t, "dtype", tensor_pb2.DATA_TYPE_BFLOAT16), "dtype"),
        (lambda t: setattr(t.shm, "sequence_number", 7), "was filled for message 7, not 1"),
        (lambda t: t.cuda_ipc.CopyFrom(t.shm), "memory that this stream does not share"),
    ],
)
def test_pointers_are_not_believed(spoil: Callable[[tensor_pb2.Tensor], None], reason: str) -> None:
    """A draft must not read behind a slot, nor another message's rows as this one's."""
    both = pair()
    message = both.message(numbers(2), 1)
    spoil(message.rows)
    with pytest.raises(BadRequest, match=reason):
        both.taken(message)


def test_a_slot_filled_for_another_message_is_stale() -> None:
    """A message that comes again must not be given rows that were written since."""
    both = pair(slots=1)
    old = both.message(numbers(2), 1)
    both.sender.answered(1)
    both.message(numbers(2) + 9, 2)
    with pytest.raises(BadRequest, match="slot 0 was filled for message 2, not 1"):
        both.taken(old)


def test_pointers_before_any_offer_are_refused() -> None:
    """There is nothing that they could point to."""
    message = pair().message(numbers(2), 1)
    with pytest.raises(BadRequest, match="does not share"):
        Receiver({SHM: MappedShm}).rows(message, COLUMNS, torch.float32)


def test_memory_that_fails_leaves_rows_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that no longer copies must cost speed, not the draft's whole stream, ever again."""
    both = pair()

    def broken(*arguments: object) -> None:
        raise RuntimeError("cuMemcpyAsync: CUDA_ERROR_INVALID_VALUE (1)")

    monkeypatch.setattr(OwnShm, "fill", broken)
    for number in (1, 2):
        message = both.message(numbers(3) + number, number)
        assert message.rows.WhichOneof("payload") == "inline"
        assert torch.equal(both.taken(message), numbers(3) + number)
    assert both.sender.plane == INLINE


def test_rows_stay_readable_when_the_sender_has_died() -> None:
    """A draft finishes the step that it is in."""
    both = pair()
    message = both.message(numbers(3), 1)
    both.sender.close()
    assert torch.equal(both.taken(message), numbers(3))
    both.receiver.close()


def test_a_segment_left_by_a_killed_process_is_removed_by_the_next(folder: Path) -> None:
    """Between making it and the draft's answer it has a name."""
    command = [sys.executable, "-c", MAKE_AND_DIE, str(folder)]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    living, other = Segment.make(4096), Segment.make(4096)
    assert {path.name for path in folder.iterdir()} == {living.name, other.name}
    assert left.name not in (living.name, other.name)
    living.close()
    other.close()


def test_a_segment_that_was_removed_before_it_was_locked_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes a file without a lock for one that was left: rows would go inline."""
    lock, removed = fcntl.flock, list[Path]()

    def late(file: int, how: int) -> None:
        if not removed:
            removed.extend(folder.iterdir())
            removed[0].unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    made = Segment.make(4096)
    assert [path.name for path in folder.iterdir()] == [made.name]
    made.close()


def test_no_room_for_a_segment_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not there would kill the process that writes to it, much later."""

    def full(file: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        own()
