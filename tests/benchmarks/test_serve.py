"""`bench serve`: its tables against the published ones, its marks, and a short real run."""

import argparse
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from benchmarks.collect import check_figure
from benchmarks.serve import main, plan_of, sizes
from benchmarks.serve_arm import arms
from benchmarks.serve_cell import Cell, Cells
from benchmarks.serve_figures import figures
from benchmarks.serve_machine import Machine
from benchmarks.serve_plan import Load, ServePlan, parser, settle
from benchmarks.serve_prompts import Prompts, fitting_prompts
from benchmarks.serve_published import MACRO, WORKLOADS, published_length
from benchmarks.serve_run import arm_config, run_all, servers
from benchmarks.serve_table import tables
from domino_cli.errors import UsageError
from domino_cli.stack import Stack, StackConfig
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt
from loadtest.record import Record
from loadtest.summary import summarise
from tests.benchmarks.published import ARMS, FASTEST, OVERALL, THROUGHPUT
from tests.recorded_models import DOMINO_SHIFT, TARGET, VOCAB

RECORD = Record(
    workload="w",
    index=0,
    turn=0,
    sent_s=0.0,
    scheduled_s=0.0,
    token_times_s=(0.1, 0.2),
    token_counts=(1, 3),
    end_s=0.2,
)
SUMMARY = summarise([RECORD], {"request_rate": None, "concurrency": 1, "mode": None})


def cell(arm: str, load: str, workload: str, speed: float, **more: Any) -> Cell:
    values: dict[str, Any] = {
        "arm": arm,
        "load": load,
        "workload": workload,
        "repeat": 0,
        "summary": {**SUMMARY, "output_throughput": speed},
        "answers": {f"{workload}/0/0": "a"},
    }
    return Cell(**{**values, **more})


def published() -> Cells:
    return Cells(
        cells=[
            cell(arm, load, workload, speed)
            for load, rows in THROUGHPUT.items()
            for workload, speeds in rows.items()
            for arm, speed in zip(ARMS, speeds, strict=True)
        ]
    )


def test_macros_are_the_published_ones() -> None:
    """Prevents means taken otherwise than in the tables that ours lie beside."""
    found = published()
    for load, expected in MACRO.items():
        macros = {arm: found.macro(arm, load) for arm in ARMS[1:]}
        assert macros == pytest.approx(expected, abs=0.006)
    assert [found.overall(arm) for arm in ARMS[1:]] == pytest.approx(OVERALL, abs=0.006)
    for (load, workload), arm in FASTEST.items():
        assert found.fastest(load, workload) == arm


def test_tables_mark_the_fastest_and_name_the_arms_as_published() -> None:
    """Prevents a table that needs a key to read."""
    titles = {arm.name: arm.title for arm in arms(",".join(ARMS))}
    text = tables(published(), titles)
    assert "**248.0 (5.25x)**" in text and "| 47.2 (1.00x) |" in text
    assert "Domino b16" in text and "DFlash b8" in text
    assert "Answers identical to AR's: DFlash b8 100.0%" in text
    assert "C8, published*" in text and "* Qwen3.6-27B, 2 x A100" in text


def test_repeats_are_averaged_and_partial_cells_are_in_no_mean() -> None:
    """Prevents a crashed repeat from counting as a slow one, and from vanishing."""
    found = Cells(
        cells=[
            cell("ar", "C1", "gsm8k", 10.0),
            cell("ar", "C1", "gsm8k", 20.0, repeat=1),
            cell("domino@8", "C1", "gsm8k", 45.0),
            cell("domino@8", "C1", "gsm8k", 1.0, repeat=1, incomplete="3 failed"),
            cell("dflash@8", "C1", "gsm8k", 1.0, summary={}, incomplete="died"),
        ]
    )
    assert found.speedup("domino@8", "C1", "gsm8k") == pytest.approx(3.0)
    assert found.macro("dflash@8", "C1") is None
    text = tables(found, {arm: arm for arm in found.arms})
    assert "PARTIAL domino@8 C1 gsm8k repeat 2: 3 failed" in text
    assert "PARTIAL dflash@8 C1 gsm8k repeat 1: died" in text


def test_answers_are_compared_with_ars() -> None:
    """Prevents speed bought with another answer."""
    other = cell("domino@8", "C1", "gsm8k", 1.0, answers={"gsm8k/0/0": "b"})
    found = Cells(cells=[cell("ar", "C1", "gsm8k", 1.0), other])
    assert found.identical("domino@8") == 0.0


def test_figures_are_what_collect_takes() -> None:
    """Prevents a long run whose figures cannot be kept; best Domino arm of each load."""
    args = argparse.Namespace(
        target=None, draft=None, device="cpu", dtype="float32", synthetic_acceptance=None
    )
    origin = {"date": "2026-11-29T10:00:00+00:00", "versions": {}, "command": "x"}
    found = {figure["id"]: figure for figure in figures(published(), args, origin)}
    assert found["embedded_cpu_macro_speedup_c1"]["value"] == pytest.approx(4.54, abs=0.006)
    assert "domino@8" in found["embedded_cpu_macro_speedup_c32"]["unit"]
    for name, figure in found.items():
        check_figure(name, figure)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--arms", "ar,eagle"], "arm 'eagle' is unknown"),
        (["--arms", "ar@4"], "arm 'ar@4' is unknown"),
        (["--arms", "domino@0"], "'0' is not an integer of at least 1"),
        (["--workload", "gsm8k,mmlu"], "workload 'mmlu' is unknown"),
        (["--concurrency", "1,0"], "'0' is not an integer of at least 1"),
        (["--request-rate", "-1"], "'-1' is not a rate above 0"),
        (["--out", "/proc/nothing"], "'/proc/nothing' cannot be made"),
        (["--repeats", "0"], "'0' is not an integer of at least 1"),
    ],
)
def test_bad_flags_are_named(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents hours of another comparison than the one that was meant."""
    with pytest.raises(SystemExit) as end:
        main(flags)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_arms_start_their_own_widths(tmp_path: Path) -> None:
    """A fixed arm that adapts, an auto arm that does not, or AR slowed down by a loaded draft."""
    config = StackConfig(target=tmp_path, draft=tmp_path, width=4)
    found = {
        arm.name: (mine.draft, mine.width, mine.width_policy)
        for arm in arms("domino@auto,ar,dflash@8,domino")
        for mine in [arm_config(config, arm, tmp_path)]
    }
    assert found == {
        "ar": (None, None, None),
        "domino@auto": (tmp_path, 4, "auto"),
        "dflash@8": (tmp_path, 8, "fixed"),
        "domino": (tmp_path, 4, None),
    }
    assert [a.title for a in arms("dspark@8,domino@auto")] == ["DSpark b8", "Domino auto"]


def test_a_missing_dataset_is_told_before_anything_starts(tmp_path: Path) -> None:
    """Prevents three servers that load for nothing."""
    target, draft = tiny_pair(tmp_path)
    models = ["--target", str(target), "--draft", str(draft), "--out", str(tmp_path / "out")]
    with pytest.raises(UsageError, match=r"none\.jsonl cannot be read"):
        main([*models, "--dataset-path", str(tmp_path / "none.jsonl")])


def test_prompts_that_do_not_fit_are_left_out_and_the_next_ones_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prevents requests that are refused, or fewer prompts than there are. A word is a token."""
    target, _ = tiny_pair(tmp_path)
    file = tmp_path / "words.jsonl"
    turns = (["w1"], ["w2 w3 w4 w5"], ["w6", "w7 w8"], ["w9"])
    file.write_text("\n".join(json.dumps({"turns": one}) for one in turns))
    flags = ["--dataset-path", str(file), "--max-prompt-tokens", "3", "--max-tokens", "10"]
    args = settle(parser(None).parse_args([*flags, "--num-prompts", "2"]))
    found = fitting_prompts(args, StackConfig(target=target))
    assert [p.index for p in found.by_name["words"]] == [0, 2]
    assert (found.longest, found.chat) == (1 + 2 + 2 * 10, False)
    args = settle(parser(None).parse_args([*flags, "--num-prompts", "9"]))
    fitting_prompts(args, StackConfig(target=target))
    assert "words: 3 prompts, 9 were asked for" in capsys.readouterr().err
    args.max_tokens = 10**6
    with pytest.raises(UsageError, match="no prompt of words fits"):
        fitting_prompts(args, StackConfig(target=target))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--concurrency", "1,64"], {"max_sequences": 64, "kv_tokens": 64 * (1000 + 320)}),
        (["--concurrency", "1"], {"max_sequences": 32, "kv_tokens": 16384}),
        (["--request-rate", "2"], {"max_sequences": 32, "kv_tokens": 32 * (1000 + 320)}),
        (["--concurrency", "8", "--max-sequences", "4"], {"max_sequences": 4, "kv_tokens": 16384}),
    ],
)
def test_servers_have_room_for_the_highest_load(flags: list[str], expected: dict[str, int]) -> None:
    """Prevents waiting and preemption from deciding a comparison."""
    args = settle(parser(None).parse_args(flags))
    prompt = LoadPrompt(workload="gsm8k", index=0, token_ids=(1,))
    plan = plan_of(args, Prompts(by_name={"gsm8k": [prompt]}, longest=1000, chat=False))
    assert sizes(plan, 1000, args) == expected


def test_presets_fill_what_no_flag_says() -> None:
    """Prevents a preset from overruling a flag; the published serving run is 128, 512, C32, 32."""
    args = settle(parser(None).parse_args(["--preset", "serving", "--repeats", "1"]))
    assert (args.num_prompts, args.max_tokens, args.concurrency) == (128, 512, (32,))
    assert (args.warm_ups, args.repeats) == (32, 1)
    plain = settle(parser(None).parse_args([]))
    assert plain.concurrency == (1, 8, 32) and plain.repeats == 3


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


def test_published_lengths_have_the_published_means() -> None:
    """Prevents a table copied with a slip: means over workloads as the authors' pages give them."""
    means = {
        ("C1", "domino@16"): 7.33,
        ("C8", "domino@16"): 7.35,
        ("C32", "domino@8"): 5.51,
        ("C1", "dflash@16"): 6.02,
        ("C32", "dflash@8"): 4.97,
    }
    for (load, arm), mean in means.items():
        lengths = [float(published_length(load, arm, name)) for name in WORKLOADS]
        assert sum(lengths) / 6 == pytest.approx(mean, abs=0.006)
    with pytest.raises(UsageError, match="nothing was published for domino@4 at C1"):
        published_length("C1", "domino@4", "gsm8k")


def test_published_lengths_start_servers_for_every_cell() -> None:
    """Prevents one length for six workloads; AR is never pretended."""
    prompt = LoadPrompt(workload="gsm8k", index=0, token_ids=(1,))
    plan = ServePlan(
        arms=arms("ar,domino@16"),
        loads=(Load(concurrency=1), Load(concurrency=8)),
        prompts={"gsm8k": [prompt], "alpaca": [prompt]},
        repeats=1,
        base=Plan(address="x:1", prompts=(prompt,)),
        synthetic="published",
    )
    plain, drafting = plan.arms
    assert [length for length, _ in servers(plan, plain)] == [None]
    found = [length for length, _ in servers(plan, drafting)]
    assert found == ["9.163", "5.937", "9.31", "5.835"]


def tiny_pair(folder: Path) -> tuple[Path, Path]:
    """The recorded target with a tokenizer of its size, and its draft."""
    target, draft = folder / "target", folder / "draft"
    for source, copy in ((TARGET, target), (DOMINO_SHIFT, draft)):
        copy.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(source / name, copy / name)
    vocabulary = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(target / "tokenizer.json"))
    return target, draft
