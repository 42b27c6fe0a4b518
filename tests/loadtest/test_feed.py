"""Who is sent what and when: warm-ups first, then the measurement."""

import itertools
import threading

import pytest

from domino_cli.errors import UsageError
from loadtest.feed import Feed, Item
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt

PROMPTS = tuple(LoadPrompt(workload="w", index=i, token_ids=(1,)) for i in range(3))


def plan(**more: float) -> Plan:
    return Plan(address="x:1", prompts=PROMPTS, **more)  # type: ignore[arg-type]


def test_the_measurement_waits_for_the_last_warm_up() -> None:
    """Prevents warm-ups that share the machine with the first measured requests."""
    feed = Feed(plan(warm_ups=2))
    first, second = feed.take(), feed.take()
    assert first and second and first.warm_up and second.warm_up
    taken: list[Item | None] = []
    waiting = threading.Thread(target=lambda: taken.append(feed.take()))
    waiting.start()
    feed.done(first)
    assert not taken and feed.now() < 0
    feed.done(second)
    waiting.join(10)
    assert taken[0] and not taken[0].warm_up and taken[0].prompt.index == 0
    assert feed.now() >= 0


def test_every_prompt_is_sent_once_and_the_end_waits_for_the_answers() -> None:
    """Prevents a run that ends with requests in flight."""
    feed = Feed(plan())
    items = [feed.take() for _ in range(4)]
    assert [item and item.prompt.index for item in items] == [0, 1, 2, None]
    for item in items[:2]:
        assert item
        feed.done(item)
    assert not feed.finished
    assert items[2]
    feed.done(items[2])
    assert feed.finished


def test_a_run_time_goes_round_until_it_is_over() -> None:
    """Prevents a timed run that ends when the prompts do."""
    ticks = itertools.count()
    feed = Feed(plan(run_time_s=5.0), clock=lambda: float(next(ticks)))
    found = [item.prompt.index for item in iter(feed.take, None) if item]
    assert found == [0, 1, 2, 0]


def test_arrivals_are_a_poisson_process_of_the_asked_rate() -> None:
    """Prevents a constant pace, which hides queueing: mean and deviation of the gaps are 1 / rate.

    With 4,000 gaps the mean's standard error is 1.6%.
    """
    prompts = tuple(LoadPrompt(workload="w", index=i, token_ids=(1,)) for i in range(4001))
    feed = Feed(Plan(address="x:1", prompts=prompts, request_rate=50.0))
    times = [item.scheduled_s for item in iter(feed.take, None) if item]
    gaps = [b - a for a, b in itertools.pairwise(t for t in times if t is not None)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 50, rel=0.08)
    assert deviation == pytest.approx(1 / 50, rel=0.08)


def test_nothing_is_handed_out_once_the_server_is_gone() -> None:
    """Prevents a thousand failures a second after a crash, and a barrier that never opens."""
    feed = Feed(plan(warm_ups=1))
    warm_up = feed.take()
    assert warm_up
    feed.stop("gone")
    assert feed.take() is None
    feed.done(warm_up)
    assert feed.finished and feed.stopped == "gone"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("max_tokens", 0),
        ("warm_ups", -1),
        ("request_rate", 0.0),
        ("request_rate", float("nan")),
        ("run_time_s", float("inf")),
    ],
)
def test_impossible_loads_are_refused_by_name(field: str, value: float) -> None:
    """Prevents C = 0 from waiting for ever."""
    with pytest.raises(UsageError, match=f"{field}: {value}"):
        plan(**{field: value})
    with pytest.raises(UsageError, match="prompts: there are none"):
        Plan(address="x:1", prompts=())
