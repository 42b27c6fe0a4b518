"""The figures of a run, against values worked out by hand from the definitions."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.console import block
from loadtest.percentiles import percentile
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt
from loadtest.record import Record, read_records, to_line
from loadtest.summary import itl_s, summarise
from loadtest.window import most_in_flight, steady, tokens_in

SETTINGS: dict[str, Any] = {"request_rate": None, "concurrency": 1, "mode": "domino"}


def record(sent: float, times: tuple[float, ...], counts: tuple[int, ...], **more: Any) -> Record:
    values: dict[str, Any] = {
        "workload": "w",
        "index": 0,
        "turn": 0,
        "sent_s": sent,
        "scheduled_s": sent,
        "token_times_s": times,
        "token_counts": counts,
        "end_s": times[-1] if times else 1.0,
        "prompt_tokens": 10,
    }
    return Record(**{**values, **more})


# TTFT 0.1 s, then chunks of 4 and 1 tokens after 0.2 and 0.1 s: 6 tokens in 0.4 s.
ONE = record(
    0.0,
    (0.1, 0.3, 0.4),
    (1, 4, 1),
    mode="domino",
    width=8,
    verify_steps=2,
    plain_steps=0,
    step_tokens=5,
    proposed_tokens=14,
    accepted_tokens=3,
    accepted_by_position=(2, 1, 0),
)


def test_latencies_follow_both_programs_definitions() -> None:
    """Prevents figures that do not lie beside SGLang's and vLLM's. By hand from ONE:

    TPOT 0.3 / 5; SGLang's ITL: the gap of 0.2 s is four of 0.05, then 0.1; vLLM's: 0.2 and 0.1.
    """
    found = summarise([ONE], SETTINGS)
    assert found["mean_ttft_ms"] == pytest.approx(100)
    assert found["mean_tpot_ms"] == pytest.approx(60)
    assert list(itl_s(ONE)) == pytest.approx([0.05] * 4 + [0.1])
    assert found["mean_itl_ms"] == pytest.approx(60)
    assert found["mean_icl_ms"] == pytest.approx(150)
    assert found["max_icl_ms"] == pytest.approx(200)
    assert found["mean_e2e_latency_ms"] == found["mean_e2el_ms"] == pytest.approx(400)
    assert found["output_throughput"] == pytest.approx(6 / 0.4)
    assert found["total_throughput"] == pytest.approx(16 / 0.4)


def test_acceptance_is_counted_as_both_programs_count_it() -> None:
    """Prevents a length without the bonus token, or a rate over the wrong steps."""
    found = summarise([ONE], SETTINGS)
    assert found["accept_length"] == pytest.approx(5 / 2)
    assert found["spec_decode_acceptance_length"] == pytest.approx(1 + 3 / 2)
    assert found["spec_decode_acceptance_rate"] == pytest.approx(3 / 14)
    assert found["spec_decode_per_position_acceptance_rates"] == pytest.approx([1.0, 0.5, 0.0])


def test_percentiles_interpolate_between_neighbours() -> None:
    """Prevents percentiles that differ from numpy's: 90% of 1..5 lies at 4.6."""
    assert percentile([1, 2, 3, 4, 5], 90) == pytest.approx(4.6)
    assert percentile([7], 99) == 7


def test_requests_in_flight_at_the_end_count_until_then() -> None:
    """Prevents the last answers from being lost, or from stretching the steady part.

    Two at a time, a token each 0.5 s: the third is sent when the first ends, at 1 s, which is also
    when the load stops being full; until then 4 tokens came, in flight were 2.
    """
    runs = [record(sent, (0.5, 1.0), (1, 1), index=i) for i, sent in enumerate((0.0, 0.0, 1.0))]
    window = steady(runs, 2)
    assert window is not None and (window.start_s, window.end_s) == (0.0, 1.0)
    assert tokens_in(runs, window) == 4
    found = summarise(runs, {**SETTINGS, "concurrency": 2})
    assert found["completed"] == 3 and found["total_output_tokens"] == 6
    assert found["duration"] == pytest.approx(2.0)
    assert found["steady_output_throughput"] == pytest.approx(4.0)
    assert found["littles_law"] == pytest.approx(1.0)
    assert found["concurrency"] == pytest.approx(3 / 2)
    assert most_in_flight(runs) == 2


def test_littles_law_shows_a_generator_that_idles() -> None:
    """Prevents a load that was never there from passing as C: half a second between requests."""
    runs = [record(sent, (0.5,), (1,), index=i) for i, sent in enumerate((0.0, 1.0, 2.0, 3.0))]
    assert summarise(runs, SETTINGS)["littles_law"] == pytest.approx(0.5)


def test_failed_requests_are_counted_and_in_no_latency() -> None:
    """Prevents errors that look like fast answers."""
    failed = record(0.4, (), (), error="CAPACITY: full")
    found = summarise([ONE, failed], SETTINGS)
    assert (found["completed"], found["failed"]) == (1, 1)
    assert found["errors"] == {"CAPACITY": 1}
    assert found["mean_ttft_ms"] == pytest.approx(100)
    nothing = summarise([], SETTINGS)
    assert (nothing["completed"], nothing["output_throughput"]) == (0, 0.0)
    assert "Successful requests:" in block(found) and block(nothing)


def test_a_lost_draft_is_counted() -> None:
    """Prevents plain answers from passing as a drafting arm's; one plain step may end a request."""
    runs = [
        record(0, (0.1,), (1,), mode="domino", width=8, plain_steps=1),
        record(0, (0.1,), (1,), mode="domino", width=8, plain_steps=2),
        record(0, (0.1,), (1,), mode="ar", width=1, plain_steps=9),
    ]
    assert summarise(runs, SETTINGS)["drafts_lost"] == 2
    assert summarise(runs[2:], {**SETTINGS, "mode": "ar"})["drafts_lost"] == 0


def test_records_survive_a_file_that_was_cut_off(tmp_path: Path) -> None:
    """Prevents one half-written line from taking all records with it."""
    file = tmp_path / "r.jsonl"
    file.write_text(to_line(ONE) + to_line(ONE)[:20])
    assert read_records(file) == [ONE]


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """Prevents locust from running another plan than the one that was made."""
    prompts = (LoadPrompt(workload="w", index=3, turns=("a", "b")),)
    plan = Plan(address="x:1", prompts=prompts, concurrency=4, mode="domino")
    plan.save(tmp_path / "p.json")
    assert Plan.load(tmp_path / "p.json") == plan
    assert "turns" not in json.dumps(plan.settings())
