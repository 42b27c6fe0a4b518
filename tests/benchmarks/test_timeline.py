"""Where a step's time goes: recorded by the engine, bounded, told as a table and as a trace."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.timeline import main, means_ms, part_ns, read_timeline, timeline_table, total_ns
from benchmarks.timeline_trace import MOST_STEPS, trace
from domino_cli.errors import UsageError
from domino_cli.in_process import collect
from tests.engines import MODES, engines
from tests.recorded_models import DOMINO_SHIFT, PROMPTS, TARGET
from verify_service.timeline import KEPT_STEPS, Step, Timeline

STEP = Step(
    began_ns=5_000_000,
    sequences=2,
    positions=10,
    tokens=6,
    plan_ns=1_000_000,
    verify_ns=40_000_000,
    commit_ns=2_000_000,
    send_ns=3_000_000,
    wait_ns=20_000_000,
    draft_queue_ns=1_000_000,
    draft_append_ns=2_000_000,
    draft_backbone_ns=5_000_000,
    draft_rollout_ns=8_000_000,
)


def test_the_hop_is_what_the_draft_does_not_explain() -> None:
    """Prevents time counted twice or lost: 20 ms of waiting, 16 of them the draft's own."""
    step = asdict(STEP)
    assert part_ns(step, "hop") == 4_000_000
    assert total_ns(step) == 66_000_000
    found = means_ms({"steps": [step]})
    assert sum(found.values()) == pytest.approx(66.0)


def test_the_table_leaves_prompts_out_and_splits_by_batch() -> None:
    """Prevents prompt passes from hiding what a decoding step costs."""
    steps = [asdict(STEP), asdict(Step(sequences=1, verify_ns=9, prompt_positions=4))]
    text = timeline_table({"count": 7, "sums": {}, "steps": steps})
    assert "1 decoding steps and 1 with prompts, the last of 7" in text
    rows = {row.split("|")[1].strip(): row for row in text.splitlines() if row.startswith("|")}
    assert "60.6%" in rows["verify"] and "40.000" in rows["verify"]
    assert "6.1%" in rows["hop"] and "66.000" in rows["step"]
    assert timeline_table({"count": 0, "sums": {}, "steps": []}) == "no decoding steps were run"


def test_a_trace_is_what_perfetto_reads() -> None:
    """Prevents parts that overlap or leave the step they belong to."""
    events = trace([asdict(STEP)])["traceEvents"]
    laps = {e["name"]: e for e in events if e["ph"] == "X" and e["tid"] == 1}
    draft = {e["name"]: e for e in events if e["ph"] == "X" and e["tid"] == 2}
    assert [laps[n]["ts"] for n in ("plan", "verify", "wait")] == [0, 1000, 46000]
    assert laps["verify"]["args"]["sequences"] == 2
    assert draft["queue"]["ts"] == pytest.approx(46000 + 2000)
    assert draft["rollout"]["ts"] + draft["rollout"]["dur"] == pytest.approx(66000 - 2000)


def test_many_steps_stay_bounded(tmp_path: Path) -> None:
    """Prevents a service that grows until it is killed, and traces that no viewer opens."""
    timeline = Timeline()
    many = 3 * KEPT_STEPS
    for _ in range(many):
        timeline.add(STEP)
    assert timeline.count == many
    assert timeline.sums["verify_ns"] == many * STEP.verify_ns
    assert len(timeline.steps) == KEPT_STEPS
    file, out = tmp_path / "t.json", tmp_path / "trace.json"
    timeline.write(file)
    assert file.stat().st_size < 10 << 20
    assert main([str(file), "--trace", str(out)]) == 0
    assert out.stat().st_size < 10 << 20
    spans = [e for e in json.loads(out.read_text())["traceEvents"] if e.get("tid") == 1]
    assert len(spans) <= 5 * MOST_STEPS + 1


def test_the_engine_accounts_for_every_step_and_token() -> None:
    """Prevents a timeline of other steps than those that ran."""
    with engines(TARGET, DOMINO_SHIFT) as both:
        ids, end = collect(both.submit(PROMPTS[0], 24, mode=MODES["domino"], draft_tokens=7))
        found = both.engine.timeline
        assert both.engine.idle.wait(60)
    assert found.sums["tokens"] == len(ids) == 24
    assert found.sums["prompt_positions"] == len(PROMPTS[0])
    decoding = [step for step in found.steps if not step.prompt_positions]
    assert len(decoding) == end.speculation.verify_steps
    assert sum(step.positions - step.sequences for step in decoding) == (
        end.speculation.proposed_tokens
    )
    for step in decoding[:-1]:
        drafted = step.draft_append_ns + step.draft_backbone_ns + step.draft_rollout_ns
        assert 0 < drafted <= step.wait_ns


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"count": 1}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    """Prevents a traceback for a records file, or a table of nothing."""
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"x\.json: no timeline"):
        read_timeline(file)
    with pytest.raises(UsageError, match="no timeline"):
        read_timeline(tmp_path / "none.json")
