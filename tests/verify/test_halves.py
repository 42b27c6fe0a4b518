"""Halves that take turns at target and draft: never another answer, and only where it pays."""

from collections.abc import Sequence as Seq
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.standing_still import standing_still
from tests.verify.counting_engine import counted, counting
from tests.verify.counting_link import CountingLink
from tests.verify.step_machine import TABLE
from tests.verify.test_width_policy import a_sequence
from verify_service.scheduler import Work
from verify_service.sequence import Sequence
from verify_service.table_width import TableWidth
from verify_service.timeline import Step
from verify_service.width_policy import PlannedWidth

MOST = 15


class Flipping:
    """Halves on and off in a fixed order, over and over, at widths as planned or plain, some of
    them asked for a step later."""

    def __init__(self, order: Seq[tuple[bool, bool, int | None]]) -> None:
        self.left, self.order, self.halves, self.wakes = list(order), order, False, False

    def draft_tokens(self, sequences: Seq[Sequence]) -> int | None:
        self.left = self.left or list(self.order)
        self.halves, self.wakes, asked = self.left.pop(0)
        return asked

    def observe(self, step: Step) -> None:
        """Of no interest."""


turns = st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, 0, 3]))
orders = st.lists(turns, min_size=1, max_size=9)


@settings(deadline=None, max_examples=40)
@given(orders, st.integers(1, 5))
def test_any_order_of_halves_leaves_answers_and_drafts_whole(
    order: list[tuple[bool, bool, int | None]], count: int
) -> None:
    """Proposals taken for another prefix, rows sent twice, or requests that wait for ever (the
    links check that rows are contiguous and messages strictly in turn). Two drafts, one of them
    shared: M to N."""
    links = [CountingLink(max_rows=9), CountingLink()]
    with counting(widths=Flipping(order)) as running:
        firsts = [3 + 100 * i for i in range(count)]
        answers = [
            running.submit([first], 30 + first % 17, draft=links[first % 2].plan())
            for first in firsts
        ]
        for first, answer in zip(firsts, answers, strict=True):
            assert answer.collect()[0] == counted(first, 30 + first % 17)


def test_one_half_runs_while_the_other_awaits_its_draft() -> None:
    """Halves that wait all the same: ping-pong would only make steps smaller."""
    ran: list[list[str]] = []
    link = CountingLink()

    def watch(work: Seq[Work]) -> None:
        ran.append([item.sequence.request.request_id for item in work if len(item.ids) > 1])

    with counting(widths=PlannedWidth(halves=True)) as running:
        running.executor.watch = watch
        with standing_still(running.engine, after=0):
            answers = [
                running.submit([100 * i], 65, draft=link.plan(), name=f"{i}") for i in range(4)
            ]
        assert [a.collect()[0] for a in answers] == [counted(100 * i, 65) for i in range(4)]
    full = [names for names in ran if names]
    both = [(a, b) for a, b in pairwise(full) if len(a) == len(b) == 2]
    assert len(both) > 8 and all(not set(a) & set(b) for a, b in both)
    assert all(len(names) <= 2 for names in full)


def test_a_late_draft_keeps_no_half_waiting() -> None:
    """A draft that hangs would stop its requests, which decode plainly otherwise."""
    link = CountingLink()
    with counting(widths=PlannedWidth(halves=True), step_s=0.01, timeout_s=60) as running:
        answers = [running.submit([100 * i], 40, draft=link.plan()) for i in range(3)]
        link.answers.clear()
        assert [a.collect()[0] for a in answers] == [counted(100 * i, 40) for i in range(3)]
        link.answers.set()


def run(policy: TableWidth, batch: int, draft_ms: float, *, early_s: float = 0.0) -> int:
    """200 steps of what halves, or whole steps, take; draft tokens of the last.

    early_s: of a whole step's target, seen as waiting for the draft: it begins before its turn."""
    sequences, asked = [a_sequence() for _ in range(batch)], 0
    for _ in range(200):
        for sequence in sequences:
            sequence.history.add(asked, asked)
        halves, count = policy.halves, batch // 2 if policy.halves else batch
        verify_s, draft_s = TABLE.seconds(count, asked + 1, 0), draft_ms / 1e3
        step = Step(sequences=count, positions=count * (asked + 1))
        asked = policy.draft_tokens(sequences)
        hidden_s = 0.0 if halves else early_s
        waited_s = max(draft_s - verify_s, 0.0) if halves else draft_s + hidden_s
        step.verify_ns = int(1e9 * (verify_s - hidden_s))
        step.wait_ns = int(1e9 * waited_s) if asked else 0
        policy.observe(step)
    return asked


@pytest.mark.parametrize(
    ("batch", "draft_ms", "pays"), [(8, 3, False), (128, 8, True), (1, 9, False)]
)
def test_halves_where_two_half_steps_cost_less(batch: int, draft_ms: int, pays: bool) -> None:
    """At few rows a half step costs what a whole one does; at many it is half of it."""
    policy = TableWidth(TABLE, MOST, ping_pong="auto")
    asked = run(policy, batch, draft_ms)
    assert policy.halves == pays and asked


def test_halves_do_not_start_early() -> None:
    """What whole steps hide of the host's and the target's time was taken off half steps too: on
    two GPUs 32 requests were answered by turns, 30% slower than together."""
    policy = TableWidth(TABLE, MOST, ping_pong="auto")
    run(policy, 4, draft_ms=1.5)
    asked = run(policy, 8, draft_ms=2, early_s=3e-3)
    assert not policy.halves and asked
