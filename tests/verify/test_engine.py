"""The engine loop: every way a request can end, and what the others see of it: nothing."""

import threading
from collections.abc import Callable, Sequence

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from serving.errors import BadRequest, Draining, Overloaded, PeerUnavailable
from tests.standing_still import standing_still
from tests.verify.counting_engine import Answer, CountingEngine, counted, counting
from verify_service.scheduler import Work
from verify_service.sequence import Sequence as Running

ABORT, LENGTH = spec.FINISH_REASON_ABORT, spec.FINISH_REASON_LENGTH


def ended(answer: Answer) -> tuple[list[int], spec.FinishReason.ValueType]:
    ids, done = answer.collect()
    assert done.usage.completion_tokens == len(ids)
    return ids, done.finish_reason


def sequence_of(work: Sequence[Work], name: str) -> Work | None:
    return next((w for w in work if w.sequence.request.request_id == name), None)


def test_requests_of_all_lengths_share_the_steps() -> None:
    """A row of the wrong sequence, or one too few, breaks the count."""
    with counting(max_sequences=3, prefill_tokens=5) as running:
        cases = [([7 * i] * (1 + 3 * i), 1 + 2 * i) for i in range(7)]
        answers = [running.submit(prompt, count) for prompt, count in cases]
        for (prompt, count), answer in zip(cases, answers, strict=True):
            assert ended(answer) == (counted(prompt[-1], count), LENGTH)


def test_abort_in_the_queue() -> None:
    """A queued request that is aborted must neither run nor keep its place."""
    with counting(max_sequences=1) as running:
        queued: list[Answer] = []

        def submit_and_abort(work: Sequence[Work]) -> None:
            if not queued:
                queued.append(running.submit([50], 5, name="queued"))
                assert running.engine.abort("queued")

        running.executor.watch = submit_and_abort
        first, last = running.submit([1], 6), running.submit([90], 3)
        assert ended(first) == (counted(1, 6), LENGTH)
        assert ended(last) == (counted(90, 3), LENGTH)
        assert ended(queued[0]) == ([], ABORT)


MOMENTS: dict[str, Callable[[Running], bool]] = {
    "first chunk of the prompt": lambda s: s.kv_len == 0,
    "later chunk": lambda s: 0 < s.kv_len < s.prompt_len,
    "first token": lambda s: s.num_generated == 1,
    "in the middle": lambda s: s.num_generated == 20,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_abort_while_running(moment: str) -> None:
    """Pages given back too early, or not at all, show at the neighbours and at the end."""
    with counting() as running:
        emitted: list[int] = []

        def abort(work: Sequence[Work]) -> None:
            item = sequence_of(work, "aborted")
            if item and not emitted and MOMENTS[moment](item.sequence):
                assert running.engine.abort("aborted")
                emitted.append(item.sequence.num_generated + item.choices)

        running.executor.watch = abort
        neighbour = running.submit([1, 2, 3], 40)
        aborted = running.submit(range(100, 112), 40, name="aborted")
        follower = running.submit([70], 40)
        assert ended(aborted) == (counted(111, emitted[0]), ABORT)
        assert ended(neighbour) == (counted(3, 40), LENGTH)
        assert ended(follower) == (counted(70, 40), LENGTH)
        assert not running.engine.abort("aborted")


def test_a_request_id_is_taken_while_it_runs() -> None:
    """Abort and logs would not know which of two is meant."""
    with counting() as running:
        second_try: list[BadRequest] = []

        def submit_again(work: Sequence[Work]) -> None:
            with pytest.raises(BadRequest) as caught:
                running.submit([9], 2, name="same")
            second_try.append(caught.value)

        running.executor.watch = submit_again
        assert ended(running.submit([1], 3, name="same")) == (counted(1, 3), LENGTH)
        assert {error.field for error in second_try} == {"request_id"}
        running.executor.watch = lambda work: None
        assert ended(running.submit([9], 2, name="same")) == (counted(9, 2), LENGTH)


def test_a_full_queue_refuses_and_recovers() -> None:
    """An unbounded queue answers everybody, too late."""
    with counting(max_sequences=1, max_waiting=2) as running:
        refused: list[Overloaded] = []
        accepted: list[Answer] = []

        def crowd(work: Sequence[Work]) -> None:
            if not refused:
                accepted.extend(running.submit([10 * i], 3) for i in (1, 2))
                with pytest.raises(Overloaded) as caught:
                    running.submit([0], 1)
                refused.append(caught.value)

        running.executor.watch = crowd
        assert ended(running.submit([1], 5)) == (counted(1, 5), LENGTH)
        assert [ended(answer)[0] for answer in accepted] == [counted(10, 3), counted(20, 3)]
        assert refused[0].retry_after_s is not None
        assert ended(running.submit([4], 1)) == (counted(4, 1), LENGTH)


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    """At the head of the queue it would hold up everybody behind it for ever."""
    with counting(pages=5) as running:
        with pytest.raises(BadRequest, match="need 6 KV pages, the service has 5") as caught:
            running.submit([1] * 10, 11)
        assert caught.value.field == "max_tokens"
        assert ended(running.submit([1] * 10, 10)) == (counted(1, 10), LENGTH)


def test_stopping_ends_every_request_and_takes_no_more() -> None:
    """Handlers of requests that nobody ends would keep the process from exiting."""
    running = CountingEngine(max_sequences=1)
    asked = threading.Event()
    end = running.engine.commands.end

    def end_and_tell() -> None:
        end()
        asked.set()

    running.engine.commands.end = end_and_tell  # type: ignore[method-assign]
    running.engine.start()
    with standing_still(running.engine, after=1):
        answers = [running.submit([1], 5), running.submit([2], 5)]
        stopper = threading.Thread(target=running.engine.stop)
        stopper.start()
        assert asked.wait(60)
    stopper.join(60)
    assert [ended(answer)[1] for answer in answers] == [ABORT, ABORT]
    with pytest.raises(Draining):
        running.submit([3], 5)


def test_books_that_do_not_add_up_end_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that goes on after losing pages dies slowly, or logs the same traceback for ever."""
    running = CountingEngine()
    failed = threading.Event()

    def lose_a_page(work: Sequence[Work]) -> None:
        running.scheduler.allocator.allocate(1)

    running.executor.watch = lose_a_page
    running.engine.start(on_failure=failed.set)
    assert ended(running.submit([1], 1)) == ([2], LENGTH)
    assert failed.wait(60)
    running.engine.stop()
    with pytest.raises(Draining):
        running.submit([3], 5)
    assert caplog.text.count("Traceback") == 1
    assert "99 of 100 pages" in caplog.text


def test_an_engine_that_dies_sends_its_requests_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """INTERNAL would be final; a router tries UNAVAILABLE on another verify service."""
    running = CountingEngine()

    def die() -> None:
        raise RuntimeError("no step at all")

    monkeypatch.setattr(running.engine, "_step", die)
    failed = threading.Event()
    running.engine.start(on_failure=failed.set)
    answer = running.submit([1], 3)
    with pytest.raises(PeerUnavailable, match="its engine cannot go on"):
        ended(answer)
    assert failed.is_set()
    running.engine.stop()
