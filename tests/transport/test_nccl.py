"""Rows that are sent, by NCCL and by TCP: the same bits, in step, and every wait ends."""

import queue
import threading
import time
from contextlib import ExitStack

import pytest
import torch

from domino_serve.v1 import draft_pb2
from serving.errors import BadRequest
from serving.transport import nccl
from serving.transport.nccl import MappedNccl, OwnNccl
from serving.transport.pair import PairLost
from serving.transport.plane import INLINE, SLOT_BYTES
from tests.patience import NEVER_S
from tests.transport import fake_nccl
from tests.transport.memory import COLUMNS, Pair, numbers
from tests.transport.sent import CPU, SOON_S, Devices, pair

pytestmark = pytest.mark.usefixtures("patient")


def sending(both: Pair) -> OwnNccl:
    memory = both.sender._memory
    assert isinstance(memory, OwnNccl)
    return memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_arrive_as_they_were(devices: Devices, dtype: torch.dtype) -> None:
    """Prevents rows of another message or dtype, a part of them, and a head that is taken for
    rows; views too, which need not lie one behind another."""
    with pair(devices) as both:
        for number, count in enumerate([1, 500, 7, 1, 1000, 33], start=1):
            rows = (numbers(2 * count, dtype) + number)[::2].to(devices[0])
            message = both.message(rows, number)
            assert message.rows.WhichOneof("payload") == "nccl"
            taken = both.taken(message, dtype)
            assert taken.device == devices[1]
            assert torch.equal(taken.cpu(), rows.cpu())
            both.receiver.release()
            both.sender.answered(number)


def test_rows_are_those_of_their_message(devices: Devices) -> None:
    """The next pass writes over them, perhaps before they are sent."""
    with pair(devices) as both:
        rows = [(numbers(3) + number).to(devices[0]) for number in (1, 2)]
        messages = [both.message(some, number) for number, some in enumerate(rows, start=1)]
        assert both.message(rows[0], 3).rows.WhichOneof("payload") == "inline", "all slots wait"
        for some in rows:
            some.zero_()
        for number, message in enumerate(messages, start=1):
            assert torch.equal(both.taken(message).cpu(), numbers(3) + number)


def refused(both: Pair, message: draft_pb2.StepRequest, reason: str) -> None:
    """The stream ends then; nothing is taken any more."""
    with pytest.raises(BadRequest, match=reason):
        both.taken(message)
    with pytest.raises(BadRequest, match="was closed"):
        both.taken(message)


def test_a_message_that_was_left_out_ends_the_pair(devices: Devices) -> None:
    """From there on each message would be given the rows of the one before."""
    with pair(devices) as both:
        both.message(numbers(2).to(devices[0]), 1)
        second = both.message(numbers(2).to(devices[0]), 2)
        refused(both, second, "holds 64 bytes of message 1, not 64 of message 2")


def test_fewer_rows_than_were_sent(devices: Devices) -> None:
    """What is left would be taken for the next message's."""
    with pair(devices) as both:
        message = both.message(numbers(3).to(devices[0]), 1)
        message.rows.shape[0] = 2
        refused(both, message, "holds 96 bytes of message 1, not 64 of message 1")


def test_more_rows_than_were_sent(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft would wait for ever, and with it every verify service that it has."""
    with pair(devices) as both:
        message = both.message(numbers(3).to(devices[0]), 1)
        message.rows.shape[0] = 400
        monkeypatch.setattr(nccl, "MOVE_S", SOON_S)
        refused(both, message, "timed out")


def test_rows_that_were_never_sent(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify service that died, or lies, must not keep the draft's GPU behind a receive."""
    with pair(devices) as both:
        message = both.message(numbers(3).to(devices[0]), 1)
        assert torch.equal(both.taken(message).cpu(), numbers(3))
        monkeypatch.setattr(nccl, "MOVE_S", SOON_S)
        refused(both, message, "timed out")
        assert torch.ones(1, device=devices[1]).add(1).item() == 2


def test_a_draft_that_hangs_is_sent_the_rest_inline(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify's GPU would wait with a kernel for a draft that takes nothing."""
    monkeypatch.setattr(nccl, "MOVE_S", SOON_S)
    with pair(devices) as both:
        memory = sending(both)
        for number in (1, 2):  # more than connections hold on their way
            both.message(numbers(SLOT_BYTES // COLUMNS // 4).to(devices[0]), number)
        memory._sending.join()
        both.sender.answered(2)
        message = both.message(numbers(3).to(devices[0]), 3)
        assert message.rows.WhichOneof("payload") == "inline"
        assert both.sender.plane == INLINE
        assert torch.equal(both.taken(message).cpu(), numbers(3))


def test_whoever_waits_is_woken_by_close(devices: Devices) -> None:
    """A service that stops would wait for its peers' limits."""
    with pair(devices) as both:
        message = both.message(numbers(3).to(devices[0]), 1)
        both.taken(message)
        mapped = both.receiver._memory
        assert isinstance(mapped, MappedNccl)
        found: list[str] = []
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            with pytest.raises(PairLost) as lost:
                mapped._received(2, 8, time.monotonic() + NEVER_S)
            found.append(str(lost.value))

        waiting = threading.Thread(target=wait)
        waiting.start()
        begun.wait()
        time.sleep(SOON_S / 10)
        mapped.close()
        waiting.join()
        assert found == ["was closed"]


def test_streams_at_once(devices: Devices) -> None:
    """Each has a pair of its own: none may get another's rows, or wait for it."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(pair(devices)) for _ in range(6)]
        wrong: list[int] = []

        def use(index: int) -> None:
            both = pairs[index]
            for number in range(1, 9):
                rows = numbers(50) + 100 * index + number
                message = both.message(rows.to(devices[0]), number)
                if not torch.equal(both.taken(message).cpu(), rows):
                    wrong.append(index)
                both.sender.answered(number)

        threads = [threading.Thread(target=use, args=(i,)) for i in range(len(pairs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_rows_of_a_gpu_wait_for_no_thread_of_their_own() -> None:
    """Its turn comes behind those that stream tokens: 2 ms of a step of 32 requests."""
    with fake_nccl.in_place(), pair((CPU, CPU)) as both:
        sending(both)._begun = queue.SimpleQueue()  # that thread hears of nothing more
        message = both.message(numbers(3), 1)
        assert torch.equal(both.taken(message), numbers(3))


def test_what_nccl_says_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    """A cable that is out must be in the log as that, not as a limit of time."""
    with fake_nccl.in_place() as library, pair((CPU, CPU)) as both:
        memory, mapped = sending(both), both.receiver._memory
        assert mapped is not None
        library.error = fake_nccl.SYSTEM_ERROR
        both.message(numbers(2), 1)
        memory._sending.join()
        assert both.message(numbers(2), 2).rows.WhichOneof("payload") == "inline"
        assert "rows go inline from here on: NCCL: unhandled system error (2)" in caplog.text
        with pytest.raises(BadRequest, match=r"NCCL: unhandled system error \(2\)"):
            mapped.read(0, 1, (2, COLUMNS), torch.float32)
