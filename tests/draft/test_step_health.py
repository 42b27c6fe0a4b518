"""Steps that hang or fail for good are told, so that a draft that is of no use is restarted."""

import threading

import pytest
import torch

from draft_service import step_health
from draft_service.step_health import StepHealth
from serving.errors import BadRequest
from tests.services.requests import generate, seat
from tests.services.served import serve_draft, serve_verify

CPU = torch.device("cpu")


def test_a_step_that_runs_is_seen_and_an_ended_one_is_not() -> None:
    """A watchdog that sees the newest step only would miss the stuck one that all wait for."""
    health, entered, leave = StepHealth(CPU), threading.Event(), threading.Event()

    def stuck() -> None:
        with health.step():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=stuck)
    thread.start()
    assert entered.wait(60)
    first = health.step_began
    with health.step():
        assert health.step_began == first is not None
    leave.set()
    thread.join()
    assert health.step_began is None


@pytest.mark.parametrize("error", [BadRequest("rows", "has none"), RuntimeError("a bug")])
def test_errors_on_a_sound_device_end_nothing(error: Exception) -> None:
    """A bad message, or a bug that one message meets, must not cost every peer its draft."""
    health, failures = StepHealth(CPU), list[bool]()
    health.on_failure = lambda: failures.append(True)
    with pytest.raises(type(error)), health.step():
        raise error
    assert (failures, health.step_began) == ([], None)


def test_wrong_books_end_the_draft() -> None:
    """A draft that has lost pages is full for ever."""
    health, failures = StepHealth(CPU), list[bool]()
    health.on_failure = lambda: failures.append(True)
    with pytest.raises(AssertionError), health.step():
        raise AssertionError("1 of 8 pages are lost")
    assert failures == [True]


def test_a_broken_device_ends_the_draft_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a CUDA fault a draft answers handshakes for ever, and drafts nothing."""
    failed = threading.Event()
    with serve_draft() as draft, serve_verify() as verify:
        expected, _ = generate(verify.stub, [1, 2, 3], 30)
        draft.servicer.health.on_failure = failed.set

        def fault(*_: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(draft.loaded.engine._executor, "run", fault)
        monkeypatch.setattr(step_health, "works", lambda device: False)
        ids, done = generate(verify.stub, [1, 2, 3], 30, seat(draft.stub, draft.address))
        assert failed.wait(60)
    assert (ids, done.speculation.accepted_tokens) == (expected, 0)
