"""Widths on a GPU: as fast as the best fixed one at every batch and context, by known costs."""

import random
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

from serving.options import OptionError
from tests.verify.test_width_policy import a_sequence
from verify_service import load
from verify_service.config import VerifyConfig
from verify_service.step_table import StepCost, StepTable, through
from verify_service.table_width import FIRST_PROBE, PROBE_STEPS, TableWidth
from verify_service.timeline import Step
from verify_service.waits import Waits
from verify_service.width_policy import AutoWidth, PlannedWidth

MOST, WIDTHS, BATCHES = 15, (1, 8, 16), (1, 8, 32, 64, 128)
PER_POSITION = 40e-9  # seconds: 150 KB a position at 4 TB/s, as Qwen3-8B's in bfloat16


def target_seconds(batch: int, width: int, positions: int) -> float:
    """An 8B target on an H200: weights are read once, from 256 rows on it computes."""
    return max(4.1e-3, batch * width * 20e-6) + 0.1e-3 + positions * PER_POSITION


TABLE = StepTable(
    {
        (b, w): StepCost(seconds=target_seconds(b, w, 0), per_position=PER_POSITION)
        for b in BATCHES
        for w in WIDTHS
    }
)


def draft_seconds(batch: int, draft_tokens: int) -> float:
    return 0.6e-3 + 0.04e-3 * draft_tokens + 0.05e-3 * batch if draft_tokens else 0.0


def speed(rates: Seq[float], batch: int, context: int, draft_tokens: int) -> float:
    """Tokens a second of one fixed width, by the formula."""
    reached, tokens = 1.0, 1.0
    for rate in rates[:draft_tokens]:
        reached *= rate
        tokens += reached
    seconds = target_seconds(batch, 1 + draft_tokens, batch * context)
    return batch * tokens / (seconds + draft_seconds(batch, draft_tokens))


class Machine:
    """Sequences of an acceptance, on this target and draft."""

    def __init__(self, policy: TableWidth, batch: int, context: int) -> None:
        self.policy, self.batch, self.context, self.asked = policy, batch, context, 0
        self.sequences = [a_sequence() for _ in range(batch)]
        self.draw = random.Random(0)

    def run(self, rates: Seq[float], steps: int, opening_s: float = 0.0) -> tuple[list[int], float]:
        """Draft tokens of each step; tokens a second. opening_s: what the first step takes more."""
        chosen, tokens, seconds = [], 0, 0.0
        for number in range(steps):
            emitted = 0
            for sequence in self.sequences:
                accepted = 0
                while accepted < self.asked and self.draw.random() < rates[accepted]:
                    accepted += 1
                sequence.history.add(self.asked, accepted)
                sequence.kv_len = self.context
                emitted += accepted + 1
            took = target_seconds(self.batch, self.asked + 1, self.batch * self.context)
            took += opening_s if number == 0 else 0.0
            step = Step(sequences=self.batch, positions=self.batch * (self.asked + 1))
            self.asked = self.policy.draft_tokens(self.sequences)
            waited = draft_seconds(self.batch, self.asked)
            step.verify_ns, step.wait_ns = int(took * 1e9), int(waited * 1e9)
            self.policy.observe(step)
            chosen.append(self.asked)
            tokens, seconds = tokens + emitted, seconds + took + waited
        return chosen, tokens / seconds


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


def test_a_poor_draft_is_left_within_one_answer() -> None:
    """Places that few proposals reached were hoped to be good: a short answer was over before the
    policy knew better, 5 to 15% slower than without a draft."""
    chosen, _ = Machine(TableWidth(TABLE, MOST), 8, 500).run([0.2] * MOST, 60)
    assert chosen[-10:] == [0] * 10


@pytest.mark.parametrize("rate", [0.5, 0.88])
def test_luck_at_places_that_few_steps_reach_is_no_verdict(rate: float) -> None:
    """One long run of acceptances, or an early refusal there, kept a single request at a width that
    is 4 to 22% slower, for its whole answer."""
    rates = [rate] * MOST
    best = max(speed(rates, 1, 640, width - 1) for width in WIDTHS)
    for seed in range(20):
        machine = Machine(TableWidth(TABLE, MOST), 1, 640)
        machine.draw = random.Random(seed)
        machine.run(rates, 75)  # learns
        chosen, _ = machine.run(rates, 75)
        slowness = mean(1 / speed(rates, 1, 640, draft_tokens) for draft_tokens in chosen)
        assert 1 / slowness > 0.97 * best, f"seed {seed}"


def edge(monkeypatch: pytest.MonkeyPatch, rates: Seq[float], batch: int, worth: float) -> None:
    """From here on drafts take so long that 8 positions are worth as many times plain decoding."""
    tokens = sum(rates[0] ** place for place in range(8))
    left = tokens / worth * target_seconds(batch, 1, 600 * batch)
    left -= target_seconds(batch, 8, 600 * batch)
    assert left > 0
    times = {0: 0.0, 7: left, 15: 1.6 * left}
    monkeypatch.setattr(f"{__name__}.draft_seconds", lambda _, draft_tokens: times[draft_tokens])


def test_plain_decoding_is_taken_sooner_than_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts were kept until plain decoding was 2% better, so that it was nearly 3% (0.971 of AR at
    32 requests of 16,384 positions on an H200)."""
    machine = Machine(TableWidth(TABLE, MOST), 32, 600)
    for plain, drafted, taken in ((2, 1, 0), (1, 1.015, 0), (1, 1.03, 7), (1.015, 1, 0)):
        speeds = {(0, False): plain, (7, False): drafted}
        monkeypatch.setattr(machine.policy, "_speeds", lambda *_, found=speeds: found)
        assert machine.run([0.5] * MOST, 20)[0][-1] == taken


def test_bad_luck_does_not_end_drafts_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request's first steps say little, and plain ones nothing: drafts worth 12% more were off
    for thousands of steps, in six answers of eight."""
    rates = [0.5] * MOST
    edge(monkeypatch, rates, 1, 1.12)
    best, found = speed(rates, 1, 600, 7), []
    for seed in range(8):
        machine = Machine(TableWidth(TABLE, MOST), 1, 600)
        machine.draw = random.Random(seed)
        chosen, _ = machine.run(rates, 3000)
        found.append(mean(speed(rates, 1, 600, draft_tokens) for draft_tokens in chosen))
    assert mean(found) > 0.95 * best


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
