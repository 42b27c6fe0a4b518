"""Short real runs of `bench serve`, whole and cut short."""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.serve import main
from benchmarks.serve_arm import arms
from benchmarks.serve_machine import Machine
from benchmarks.serve_plan import Load, ServePlan
from benchmarks.serve_run import run_all
from domino_cli.stack import Stack, StackConfig
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt
from tests.benchmarks.serve_inputs import tiny_pair


def test_an_arm_whose_servers_do_not_start_is_marked_and_the_next_goes_on(tmp_path: Path) -> None:
    """Prevents one broken arm from losing the others' cells."""
    prompt = LoadPrompt(workload="ids", index=0, token_ids=(1,))
    plan = ServePlan(
        arms=arms("ar,domino@4"),
        loads=(Load(concurrency=1),),
        prompts={"ids": [prompt]},
        repeats=1,
        base=Plan(address="x:1", prompts=(prompt,)),
    )
    config = StackConfig(target=tmp_path, show_logs=False)
    found = run_all(plan, config, tmp_path)
    assert [c.arm for c in found] == ["ar", "domino@4"]
    assert all(c.incomplete and "exit code" in c.incomplete for c in found)
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 2


def test_a_short_real_run_writes_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents parts that fit each other in tests only: real services, locust, every output."""
    target, draft = tiny_pair(tmp_path)
    out = tmp_path / "out"
    code = main(
        [
            *("--target", str(target), "--draft", str(draft), "--threads", "1"),
            *("--arms", "ar,domino@8", "--concurrency", "2", "--repeats", "1"),
            *("--workload", "random", "--num-prompts", "6", "--random-input-len", "5"),
            *("--max-tokens", "12", "--warm-ups", "2", "--out", str(out)),
        ]
    )
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert "Answers identical to AR's: Domino b8 100.0%" in printed.out
    assert "Where a step's time goes: Domino b8" in printed.out
    assert "load generator's ceiling" in printed.err
    result = json.loads((out / "result.json").read_text())
    assert result["figures"] == [] and len(result["cells"]) == 2
    domino = result["cells"][1]["summary"]
    assert domino["completed"] == 6 and domino["total_output_tokens"] == 72
    assert domino["drafts_lost"] == 0 and domino["spec_decode_num_drafts"] >= 6
    assert domino["spec_decode_draft_tokens"] > domino["spec_decode_accepted_tokens"]
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 6 and "PARTIAL" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_server_that_dies_mid_run_leaves_marked_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents an hour's figures from going with a crash, and a short cell from looking whole."""
    target, draft = tiny_pair(tmp_path)
    out = tmp_path / "out"
    stacks: list[Stack] = []
    enter = Stack.__enter__

    def entered(stack: Stack) -> Stack:
        stacks.append(stack)
        return enter(stack)

    monkeypatch.setattr(Stack, "__enter__", entered)
    flags = StackConfig.router_flags
    soon = ["--failover-s", "1"]  # how long a stream waits for the dead one
    monkeypatch.setattr(StackConfig, "router_flags", lambda *args: [*flags(*args), *soon])
    records = out / "ar-C2-random-r0.jsonl"
    killer = threading.Thread(target=kill_verify, args=(records, stacks), daemon=True)
    killer.start()
    code = main(
        [
            *("--target", str(target), "--draft", str(draft), "--threads", "1"),
            *("--arms", "ar", "--concurrency", "2,1", "--repeats", "1"),
            *("--workload", "random", "--num-prompts", "4000", "--random-input-len", "5"),
            *("--max-tokens", "40", "--out", str(out)),
        ]
    )
    killer.join(60)
    printed = capsys.readouterr()
    assert code == 1
    lines = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert [cell["load"] for cell in lines] == ["C2", "C1"]
    assert 2 <= lines[0]["summary"]["completed"] < 4000
    assert "failed" in lines[0]["incomplete"] and "verify" in lines[1]["incomplete"]
    assert "PARTIAL ar C2 random repeat 1" in printed.out and "PARTIAL" in printed.err
    assert "PARTIAL: ar C1" in (out / "report.html").read_text()


def kill_verify(records: Path, stacks: Sequence[Stack]) -> None:
    """Ends the last stack's verify service once the file has records."""
    while not records.exists() or records.read_text().count("\n") < 2:
        time.sleep(0.01)
    os.kill(stacks[-1].pids()["verify"], signal.SIGKILL)


def test_a_high_load_gets_as_many_draft_seats(tmp_path: Path) -> None:
    """Prevents the requests beyond 64 from running plain and being called drafted."""
    config = StackConfig(target=tmp_path, draft=tmp_path, max_sequences=128)
    assert " --max-sessions 128" in " ".join(config.draft_flags())
    assert "max-sessions" not in " ".join(replace(config, max_sequences=8).draft_flags())


def test_a_machine_of_our_own_shows_little_other_work() -> None:
    """Prevents our own work from counting as others': the sum of two shares is one at most."""
    machine = Machine()
    sum(range(3_000_000))
    share = machine.other_work()
    assert share is None or 0.0 <= share <= 1.0


def test_synthetic_acceptance_is_loud_and_hits_its_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents pretended speed from passing as real; 41 tokens in steps of 4 but the last."""
    target, draft = tiny_pair(tmp_path)
    out = tmp_path / "out"
    code = main(
        [
            *("--target", str(target), "--draft", str(draft), "--threads", "1"),
            *("--arms", "domino@8", "--concurrency", "2", "--repeats", "1"),
            *("--workload", "random", "--num-prompts", "4", "--random-input-len", "5"),
            *("--max-tokens", "41", "--warm-ups", "2", "--out", str(out)),
            *("--synthetic-acceptance", "4"),
        ]
    )
    assert code == 0
    assert capsys.readouterr().out.startswith("domino-serve") and "SYNTHETIC ACCEPTANCE (4)" in (
        (out / "report.html").read_text()
    )
    summary = json.loads((out / "result.json").read_text())["cells"][0]["summary"]
    assert summary["accept_length"] == pytest.approx(4.0)
    assert summary["spec_decode_per_position_acceptance_rates"][:4] == [1.0, 1.0, 1.0, 0.0]
