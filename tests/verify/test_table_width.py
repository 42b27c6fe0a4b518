"""Widths on a GPU: as fast as the best fixed one at every batch and context, by known costs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.options import OptionError
from tests.verify.step_machine import MOST, TABLE, WIDTHS, Machine, speed
from tests.verify.test_width_policy import a_sequence
from verify_service import load
from verify_service.config import VerifyConfig
from verify_service.step_table import StepCost, StepTable, through
from verify_service.table_width import FIRST_PROBE, PROBE_STEPS, TableWidth
from verify_service.timeline import Step
from verify_service.waits import Waits
from verify_service.width_policy import AutoWidth, PlannedWidth


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.7, 0.9])
@pytest.mark.parametrize(("batch", "context"), [(1, 500), (8, 16000), (32, 600), (128, 4000)])
def test_never_slower_than_the_best_fixed_width(rate: float, batch: int, context: int) -> None:
    """A setting that is worse than one that could have been chosen by hand, plain decoding too."""
    rates = [rate] * MOST
    machine = Machine(TableWidth(TABLE, MOST), batch, context)
    machine.run(rates, 300)  # learns
    _, found = machine.run(rates, 1500)
    best = max(speed(rates, batch, context, width - 1) for width in WIDTHS)
    assert found > 0.97 * best
    assert found > 0.98 * speed(rates, batch, context, 0)


def test_drafting_stops_and_is_found_again() -> None:
    """Plain steps say nothing of a draft: without a look now and then it would be off for good."""
    machine = Machine(TableWidth(TABLE, MOST), 8, 500)
    poor, _ = machine.run([0.05] * MOST, 4 * FIRST_PROBE)
    assert poor[-FIRST_PROBE:].count(0) >= FIRST_PROBE - 2 * PROBE_STEPS - 8
    good, _ = machine.run([0.95] * MOST, 12 * FIRST_PROBE)
    assert set(good[-FIRST_PROBE:]) == {15}


@pytest.mark.parametrize(("batch", "plain", "rare"), [(1, 80, 500), (8, 20, 500), (64, 20, 1020)])
def test_looks_at_drafts_are_rare(batch: int, plain: int, rare: int) -> None:
    """One costs as much as 4 plain steps of one sequence and 17 of 64: more than 1% where they come
    sooner (0.967 of AR over an answer of 144 tokens, eight at once on an H200)."""
    chosen, _ = Machine(TableWidth(TABLE, MOST), batch, 500).run([0.05] * MOST, 1100)
    assert not any(chosen[plain:rare]) and any(chosen[rare:])


def test_no_step_that_runs_already_is_in_vain() -> None:
    """A look at drafts wasted the plain step that had started, which cost as much as the look."""
    machine = Machine(TableWidth(TABLE, MOST), 8, 500)
    machine.run([0.05] * MOST, 100)
    chosen, _ = machine.run([0.95] * MOST, 2 * FIRST_PROBE)
    assert chosen[0] == 0 and chosen[-1] == 15 and machine.num_wasted == 0


def test_a_poor_draft_is_left_within_one_answer() -> None:
    """Places that few proposals reached were hoped to be good: a short answer was over before the
    policy knew better, 5 to 15% slower than without a draft."""
    chosen, _ = Machine(TableWidth(TABLE, MOST), 8, 500).run([0.2] * MOST, 60)
    assert chosen[-10:] == [0] * 10


def test_another_batch_needs_no_new_learning() -> None:
    """A burst of requests that runs slowly until its costs are learnt: the table knows them."""
    rates, policy = [0.5] * MOST, TableWidth(TABLE, MOST)
    Machine(policy, 1, 500).run(rates, 200)
    chosen, _ = Machine(policy, 128, 500).run(rates, 60)
    assert 15 in Machine(policy, 1, 500).run([0.95] * MOST, 200)[0]
    assert chosen[-30:] == [0] * 30


def test_another_batch_is_chosen_for_at_once() -> None:
    """The width that suited the last few requests of a burst was the next burst's, for 7 steps."""
    rates, policy = [0.8] * MOST, TableWidth(TABLE, MOST)
    Machine(policy, 64, 600).run(rates, 100)
    assert Machine(policy, 1, 600).run(rates, 20)[0][-1] == 15
    chosen, _ = Machine(policy, 64, 600).run(rates, 7)
    assert chosen == [7] * 7


def test_what_a_width_costs_beside_its_graph_is_its_own() -> None:
    """Where a wide step's graph takes longer in service than alone, narrow ones looked so too: the
    wide width stayed, 5% slower than the narrow one."""
    machine = Machine(TableWidth(TABLE, MOST), 32, 600)
    exact, rates = machine.policy.observe, [0.97] * MOST

    def slower(step: Step) -> None:
        step.verify_ns = round(step.verify_ns * (1.5 if step.positions > 32 * 8 else 1.0))
        exact(step)

    fast, _ = machine.run(rates, 40)
    machine.policy.observe = slower  # type: ignore[method-assign]
    slow, _ = machine.run(rates, 120)
    assert fast[-1] == 15 and slow[-30:] == [7] * 30


def test_opening_a_burst_says_nothing_of_plain_steps() -> None:
    """A burst's first step is plain and opens all sessions: taken for what plain steps cost, it
    kept drafts where plain decoding was faster, by 8% at 128 requests on an H200."""
    rates, policy = [0.78] * MOST, TableWidth(TABLE, MOST)
    assert speed(rates, 128, 600, 7) < 0.95 * speed(rates, 128, 600, 0)
    for _ in range(3):
        chosen, _ = Machine(policy, 128, 600).run(rates, 28, opening_s=10e-3)
    assert chosen == [0] * 28


def test_only_widths_with_graphs_are_asked_for() -> None:
    """A width between two graphs costs as the larger and gives less."""
    chosen, _ = Machine(TableWidth(TABLE, 7), 1, 500).run([0.9] * MOST, 100)
    assert set(chosen) <= {0, 7}


def test_a_table_reads_the_graph_that_would_run() -> None:
    """A batch between two buckets that looks cheaper than it is."""
    table = StepTable(
        {(b, w): StepCost(seconds=b + w / 100, per_position=1e-3) for b in (1, 4) for w in (1, 8)}
    )
    assert table.seconds(1, 1, 0) == 1.01
    assert table.seconds(2, 5, 10) == pytest.approx(4.08 + 0.01)
    assert table.seconds(9, 1, 0) == pytest.approx(2 * 4.01 + 1.01), "two full steps and one more"
    assert table.seconds(1, 99, 0) == 1.08


def test_a_slow_start_is_no_verdict() -> None:
    """First steps wait for kernels to be compiled and memory to be mapped: drafts would look too
    slow for ever."""
    policy = TableWidth(TABLE, MOST)
    sequences, asked = [a_sequence()], 0
    for number in range(120):
        sequences[0].history.add(asked, min(asked, 5))
        step = Step(sequences=1, positions=asked + 1)
        step.verify_ns = int(1e9 * TABLE.seconds(1, asked + 1, 0))
        asked = policy.draft_tokens(sequences)
        step.wait_ns = (300 if number in (0, 1, 5) else 2) * 10**6 if asked else 0
        policy.observe(step)
    assert asked, "plain steps after all"


def test_waits_are_typical_times_and_straight_between_counts() -> None:
    """One disturbed step in a few, or an unknown batch, that turns the choice."""
    waits = Waits()
    assert waits(4) == 0
    for seconds in (9.0, 1.0, 1.0, 1.1):
        waits.add(2, seconds)
    assert waits(1) == waits(2) == 1.0
    for _ in range(3):
        waits.add(4, 3.0)
    assert (waits(3), waits(9)) == (2.0, 3.0)
    for _ in range(6):
        waits.add(2, 5.0)
    assert waits(2) == 5.0, "what is old is forgotten"


@pytest.mark.parametrize(
    ("options", "table", "kind"),
    [
        ({}, None, AutoWidth),
        ({"width": 8}, None, PlannedWidth),
        ({"width": 8, "width_policy": "auto"}, None, AutoWidth),
        ({"width_policy": "fixed"}, None, PlannedWidth),
        ({"device": "cuda:0"}, TABLE, TableWidth),
        ({"device": "cuda:0", "width": 8}, TABLE, PlannedWidth),
        ({"device": "cuda:0"}, None, PlannedWidth),
        ({"device": "cuda:0", "width_policy": "auto"}, None, AutoWidth),
    ],
)
def test_policies_by_default(options: dict[str, Any], table: StepTable | None, kind: type) -> None:
    """A policy without the costs it needs, or a width asked for that is not kept."""
    executor: Any = SimpleNamespace(costs=lambda: table)
    config = VerifyConfig(target=Path("t"), draft=Path("d"), **options)
    assert type(load._widths(config, MOST, executor)) is kind
    assert type(load._widths(replace(config, width_policy=None), 0, executor)) is PlannedWidth


def test_ping_pong_by_costs_needs_costs() -> None:
    """Halves that were asked for and never come."""
    executor: Any = SimpleNamespace(costs=lambda: None)
    config = VerifyConfig(target=Path("t"), draft=Path("d"), ping_pong="auto")
    with pytest.raises(OptionError, match=r"ping_pong: .auto. needs a draft"):
        load._widths(config, MOST, executor)
    always = load._widths(replace(config, ping_pong="always"), MOST, executor)
    assert always.halves and isinstance(always, AutoWidth)


def test_a_cost_is_the_line_through_two_lengths() -> None:
    """Noise that makes long contexts look cheaper than none."""
    assert through((100, 1.0), (300, 2.0)) == StepCost(seconds=0.5, per_position=0.005)
    assert through((100, 1.0), (300, 0.9)) == StepCost(seconds=1.0, per_position=0.0)
    assert through((100, 1.0), (100, 1.0)) == StepCost(seconds=1.0, per_position=0.0)
