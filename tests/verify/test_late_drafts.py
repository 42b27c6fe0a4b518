"""Drafts that answer after the step budget: plain steps meanwhile, then drafting goes on."""

from collections.abc import Sequence

import pytest

from tests.verify.counting_engine import Answer, CountingEngine, counted, counting
from tests.verify.counting_link import CountingLink
from verify_service.scheduler import Work

LATE_STEPS = 5
SHORT_S = 1e-9  # passed by the time of any answer


def hang(running: CountingEngine, link: CountingLink, first: int, steps: int) -> list[int]:
    """Lets the draft hang during `steps` engine steps; gives the messages it had at each step."""
    sent: list[int] = []

    def watch(work: Sequence[Work]) -> None:
        sent.append(len(link.requests))
        if len(sent) == first:
            link.answers.clear()
        elif len(sent) == first + steps:
            link.answers.set()

    running.executor.watch = watch
    return sent


def test_steps_go_on_without_and_later_with_it() -> None:
    """A step that waits for the draft holds up everybody; an old answer is no proposal for now."""
    link, other = CountingLink(), CountingLink()
    with counting(prefill_tokens=64, step_s=SHORT_S) as running:
        sent = hang(running, link, first=3, steps=LATE_STEPS)
        late = running.submit([1, 2], 80, draft=link.plan())
        beside = running.submit([500], 80, draft=other.plan())
        ids, done = late.collect()
        assert ids == counted(2, 80)
        # One more until its next answer, and one for the last token of all.
        assert LATE_STEPS < done.speculation.plain_steps <= LATE_STEPS + 2
        ids, done = beside.collect()
        assert (ids, done.speculation.plain_steps) == (counted(500, 80), 0)
    assert sent[2] + 1 == sent[3] == sent[2 + LATE_STEPS], "a draft that owes is asked no more"
    # Two answers in time, the late one, one that is not waited for, then as before.
    assert link.waits[: LATE_STEPS + 5] == [SHORT_S] * 3 + [0] * (LATE_STEPS + 1) + [SHORT_S]
    assert (link.late_answers, other.late_answers) == (1, 0)
    assert link.alive and link.open_sessions == set()


def test_a_draft_that_is_always_late_holds_up_one_step_only() -> None:
    """A draft too slow for the budget would cost the budget again with each of its answers."""
    link = CountingLink()
    steps = 0

    def watch(work: Sequence[Work]) -> None:
        nonlocal steps
        steps += 1
        (link.answers.set if steps % 3 == 0 else link.answers.clear)()

    with counting(prefill_tokens=64, step_s=SHORT_S) as running:
        running.executor.watch = watch
        ids, done = running.submit([1], 60, draft=link.plan()).collect()
        link.answers.set()
    assert (ids, done.speculation.accepted_tokens) == (counted(1, 60), 0)
    assert link.waits.count(SHORT_S) == 1
    assert link.late_answers > 10


@pytest.mark.parametrize("ends", ["aborted", "done"])
def test_a_request_that_ends_meanwhile_leaves_nothing_behind(ends: str) -> None:
    """The session of a request that is gone must be closed once the draft is back."""
    link = CountingLink()
    with counting(prefill_tokens=64) as running:
        hang(running, link, first=2, steps=8)
        gone = running.submit([1], 40 if ends == "aborted" else 10, draft=link.plan(), name="gone")
        stays = running.submit([500], 80, draft=link.plan())
        if ends == "aborted":
            running.engine.abort("gone")
        gone.collect()
        assert stays.collect()[0] == counted(500, 80)
    assert link.open_sessions == set()


def test_a_request_that_comes_meanwhile_is_drafted_for_afterwards() -> None:
    """Its session is opened with the first message after the late answer."""
    link = CountingLink()
    with counting(prefill_tokens=64) as running:
        sent = hang(running, link, first=3, steps=6)
        tell, second = running.executor.watch, list[Answer]()

        def watch(work: Sequence[Work]) -> None:
            tell(work)
            if len(sent) == 4:
                second.append(running.submit([500], 60, draft=link.plan()))

        running.executor.watch = watch
        first = running.submit([1], 90, draft=link.plan())
        assert first.collect()[0] == counted(1, 90)
        ids, done = second[0].collect()
    assert (ids, done.speculation.accepted_tokens > 0) == (counted(500, 60), True)


def test_idle_waits_for_the_late_answer() -> None:
    """Sessions of a draft that hangs while nothing runs must not be forgotten."""
    link = CountingLink()
    running = CountingEngine(prefill_tokens=64)
    hang(running, link, first=2, steps=1000)
    running.engine.start()
    try:
        assert running.submit([1], 20, draft=link.plan()).collect()[0] == counted(1, 20)
        assert not running.engine.idle.is_set()
        assert link.open_sessions
        link.answers.set()
        running.assert_free()
        assert link.open_sessions == set()
    finally:
        running.engine.stop()


def test_a_draft_that_never_answers_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """A dead draft that stays paired keeps its requests from a living one."""
    link = CountingLink()
    with counting(prefill_tokens=64, timeout_s=0.0) as running:
        hang(running, link, first=3, steps=1000)
        ids, done = running.submit([1], 60, draft=link.plan()).collect()
        assert (ids, done.speculation.accepted_tokens > 0) == (counted(1, 60), True)
        assert running.submit([5], 9, draft=link.plan()).collect()[0] == counted(5, 9)
    assert not link.alive
    assert "no answer within 0 s; 1 requests go on without a draft" in caplog.text
