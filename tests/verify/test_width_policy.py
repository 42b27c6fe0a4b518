"""The width that each step takes: never another answer, and the fastest one for the costs."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.counting_engine import counted, counting
from tests.verify.counting_link import CountingLink
from verify_service.acceptance_history import AcceptanceHistory, expected_tokens
from verify_service.sequence import DraftSession, Request, Sequence
from verify_service.step_costs import Curve, StepCosts
from verify_service.timeline import Step
from verify_service.width_policy import FIRST_PROBE, AutoWidth

MOST = 15
Cost = Callable[[int], float]  # milliseconds of so many positions, or proposals


class Scripted:
    """Widths in a fixed order, over and over."""

    halves = wakes = False

    def __init__(self, draft_tokens: Seq[int]) -> None:
        self.left, self.order = list(draft_tokens), draft_tokens

    def draft_tokens(self, sequences: Seq[Sequence]) -> int:
        self.left = self.left or list(self.order)
        return self.left.pop(0)

    def observe(self, step: Step) -> None:
        """Of no interest."""


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_any_order_of_widths_leaves_answers_and_drafts_whole(order: list[int]) -> None:
    """Rows held back in plain steps and then lost, or sent twice, would spoil every later draft
    (the link checks that rows are contiguous)."""
    link = CountingLink(max_rows=9)  # fewer than a long plain stretch leaves behind
    with counting(widths=Scripted(order)) as running:
        answers = [running.submit([first], 60, draft=link.plan()) for first in (3, 300)]
        for first, answer in zip((3, 300), answers, strict=True):
            ids, done = answer.collect()
            assert ids == counted(first, 60)
            assert done.speculation.width == 8


def test_plain_steps_send_a_draft_nothing() -> None:
    """A draft that is sent rows it need not have costs a message a step."""
    link = CountingLink()
    with counting(widths=Scripted([0])) as running:
        ids, done = running.submit([5], 40, draft=link.plan()).collect()
    assert ids == counted(5, 40) and done.speculation.plain_steps == 39
    assert sum(bool(request.steps) for request in link.requests) <= 2  # opening, prompt


def served(
    rates: Callable[[int], Seq[float]],
    *,
    verify: Cost,
    draft: Cost,
    steps: int = 1000,
    batch: int = 1,
) -> tuple[list[int], float]:
    """A machine of these costs and sequences of these acceptance rates: the draft tokens of each
    step, and tokens a millisecond of the steps behind the first hundred."""
    draw = random.Random(0)
    policy, sequences = AutoWidth(MOST), [a_sequence() for _ in range(batch)]
    asked, chosen = 0, []
    tokens = time = 0.0
    for number in range(steps):
        emitted = 0
        for sequence in sequences:
            accepted = 0
            while accepted < asked and draw.random() < rates(number)[accepted]:
                accepted += 1
            sequence.history.add(asked, accepted)
            emitted += accepted + 1
        positions, asked = batch * (asked + 1), policy.draft_tokens(sequences)
        waited = draft(asked) if asked else 0.0
        noise = 1 + 0.05 * draw.random()
        step = Step(sequences=batch, positions=positions, tokens=emitted)
        step.verify_ns, step.wait_ns = (int(noise * t * 1e6) for t in (verify(positions), waited))
        step.draft_rollout_ns = int(0.2 * asked * 1e6)
        policy.observe(step)
        chosen.append(asked)
        if number >= 100:
            tokens, time = tokens + emitted, time + noise * (verify(positions) + waited)
    return chosen, tokens / time


def a_sequence() -> Sequence:
    """Decoding, with a draft."""
    found = Sequence(
        Request(request_id="x", prompt_ids=[1], max_tokens=9, stop_ids=frozenset(), emit=print)
    )
    found.kv_len, found.draft = 1, DraftSession(plan=CountingLink().plan(MOST), session=1)
    found.tokens.append(2)
    return found


def speed(rate: float, draft_tokens: int, verify: Cost, draft: Cost, batch: int = 1) -> float:
    """Tokens a millisecond of one fixed width, by the formula."""
    tokens = batch * sum(accumulate([rate] * draft_tokens, lambda a, b: a * b, initial=1.0))
    cost = verify(batch * (draft_tokens + 1)) + (draft(draft_tokens) if draft_tokens else 0)
    return tokens / cost


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize(
    ("verify", "draft", "batch"),
    [
        (lambda rows: 10 + rows, lambda n: 2 + 0.2 * n, 1),  # a CPU: every position costs
        (lambda rows: 5 + 0.01 * rows, lambda n: 1.0 + 0.2 * n, 8),  # a GPU at few
        (lambda rows: 2 + 0.5 * rows, lambda n: 6 + 0.2 * n, 8),  # bound by computing
    ],
)
def test_as_fast_as_the_best_fixed_width(
    rate: float, verify: Cost, draft: Cost, batch: int
) -> None:
    """A policy that is worse than one setting is worse than none; plain decoding is one of them."""
    _, found = served(lambda _: [rate] * MOST, verify=verify, draft=draft, batch=batch)
    best = max(speed(rate, n, verify, draft, batch) for n in range(MOST + 1))
    assert found > 0.95 * best


def test_speculation_is_found_again() -> None:
    """Plain steps say nothing of a draft: without a look now and then it would be off for good."""

    def rates(number: int) -> list[float]:
        return [0.05 if number < 400 else 0.9] * MOST

    chosen, _ = served(rates, verify=lambda rows: 10 + rows, draft=lambda n: 4.0, steps=2000)
    assert chosen[100:400].count(0) > 250
    assert min(chosen[1500:]) > 2
    assert any(chosen[100 : 100 + 3 * FIRST_PROBE])


def test_plain_decoding_is_found_again() -> None:
    """Drafted steps say nothing of plain ones: what these took while the machine had other work
    would leave drafts on for good."""
    now = 0

    def rates(number: int) -> list[float]:
        nonlocal now
        now = number
        return [0.5] * MOST

    def verify(rows: int) -> float:
        return 55 if rows == 8 and now < 300 else 18 + 1.5 * rows

    chosen, _ = served(rates, verify=verify, draft=lambda n: 30.0, batch=8)
    assert chosen[100:300].count(0) < 50
    assert chosen[500:].count(0) > 450


def test_drafts_of_one_mode_say_nothing_of_the_costs_of_another() -> None:
    """Where DFlash and Domino take turns, one would be drafted too wide, the other too narrow."""
    costs = StepCosts()
    for mode, milliseconds in ((1, 2), (2, 6), (1, 2), (2, 6)):
        step = Step(sequences=1, positions=4, tokens=2, verify_ns=10_000_000)
        step.wait_ns, step.draft_rollout_ns = milliseconds * 1_000_000, 1_000_000
        costs.add(step, mode, 1, 4)
    assert costs.expected(1, 0, 1, 3) == pytest.approx(0.01 + 0.001 + 3 * 0.00025)
    assert costs.expected(2, 0, 1, 3) == pytest.approx(0.01 + 0.005 + 3 * 0.00025)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60))
def test_expected_tokens_follow_what_was_accepted(accepted: list[int]) -> None:
    """Counts of places that were never reached would pull every rate down."""
    history = AcceptanceHistory()
    for count in accepted:
        history.add(7, count)
    expected = expected_tokens(history.rates([0.5] * 7))
    tried = kept = 0.0
    for count in accepted:
        tried, kept = tried * 0.97 + 1, kept * 0.97 + (count > 0)
    assert expected[0] == 1
    assert expected[1] == pytest.approx(1 + (kept + 4 * 0.5) / (tried + 4))
    assert all(a <= b <= a + 1 for a, b in pairwise(expected))


def test_what_cost_nothing_at_first_is_learnt() -> None:
    """A draft whose first answers held no proposals would look free for ever."""
    curve = Curve()
    for seconds in (0.0, 0.0, *[0.030] * 200):
        curve.add(8, seconds)
    assert curve(8) == pytest.approx(0.030, rel=0.02)


def test_a_few_disturbed_steps_do_not_change_what_a_count_costs() -> None:
    """Plain steps that other work held up a few times looked slower than drafts, which then stayed
    on; a machine that is slower from now on has to be seen all the same."""
    curve = Curve()
    for _ in range(30):
        curve.add(8, 0.028)
    for _ in range(6):
        curve.add(8, 0.060)
    assert curve(8) < 0.028 * 1.1
    for _ in range(100):
        curve.add(8, 0.060)
    assert curve(8) == pytest.approx(0.060, rel=0.02)


def test_a_curve_between_and_beyond_what_was_measured() -> None:
    """An unknown width that costs nothing, or infinitely much, would always or never be taken."""
    curve = Curve()
    assert curve(3) == 0
    for count, seconds in ((4, 9.0), (1, 1.0), (4, 4.0)):
        curve.add(count, seconds)
    assert [curve(n) for n in (1, 2, 4, 9)] == [1, 2, 4, 4]
