"""What the CPU benchmark makes of its samples, and what it plans; nothing is run."""

import argparse
import json

import pytest

from benchmarks.collect import check_figure
from benchmarks.cpu import kept_figures
from benchmarks.cpu_plan import Plan, Prompts, add_arguments, is_full, plans
from benchmarks.cpu_report import as_json, sweep_table, table
from benchmarks.cpu_result import Measured, figures, rows
from benchmarks.provenance import Cpu
from benchmarks.rounds import best_widths, rotated
from benchmarks.sample import Prompt, Sample

CPU = Cpu(model="a processor", cores=2, features=("avx2",))
ORIGIN = {
    "date": "2026-11-29T10:00:00+00:00",
    "versions": {"torch": "2.13.0"},
    "command": "domino-serve bench cpu",
}
# workload -> arm -> tokens/s of its two prompts
SPEEDS = {
    "gsm8k": {"transformers": (10, 20), "ar": (20, 20), "dflash": (20, 30), "domino": (40, 30)},
    "humaneval": {"transformers": (10, 10), "ar": (10, 20), "dflash": (15, 30), "domino": (20, 60)},
}
WIDTHS = {"transformers": 1, "ar": 1, "dflash": 5, "domino": 6}


def sample(arm: str, width: int, workload: str, index: int, speed: float, last: int = 0) -> Sample:
    """60 tokens, of them 59 in verify steps: Domino's steps are 20 on gsm8k, 40 elsewhere."""
    steps = (20 if workload == "gsm8k" else 40) if width > 1 else 59 * (arm == "ar")
    return Sample(
        arm=arm,
        width=width,
        prompt=Prompt(workload=workload, index=index, text="secret"),
        token_ids=(*range(59), last),
        ttft_s=0.5,
        total_s=60 / speed,
        verify_steps=steps,
        step_tokens=59 if steps else 0,
    )


def measured(dtype: str = "float32", *, other_work: float = 0.0, last: int = 0) -> Measured:
    """`last`: the last token of one Domino answer, 0 for AR's."""
    samples = [
        sample(arm, WIDTHS[arm], workload, index, speed)
        for workload, arms in SPEEDS.items()
        for arm, speeds in arms.items()
        for index, speed in enumerate(speeds)
    ]
    samples[-1] = sample("domino", 6, "humaneval", 1, 60, last)
    plan = Plan(
        dtype=dtype, prompts=2, max_tokens=60, widths=(5, 6), sweep_prompts=1, sweep_tokens=9
    )
    return Measured(plan=plan, threads=2, other_work=other_work, sweep=samples, samples=samples)


def test_figures_are_means_over_workloads_of_medians_over_prompts() -> None:
    """Prevents a figure that one workload or one prompt decides. By hand, gsm8k then humaneval:

    AR over transformers (2 + 1) / 2 and (1 + 2) / 2; Domino over AR (2 + 1.5) / 2 and (2 + 3) / 2;
    DFlash over AR (1 + 1.5) / 2 and (1.5 + 1.5) / 2; acceptance 59 / 20 and 59 / 40.
    """
    found = figures(measured(), ORIGIN, CPU)
    assert {figure["id"]: figure["value"] for figure in found} == {
        "cpu_ar_vs_transformers": 1.5,
        "cpu_domino_speedup": 2.125,
        "cpu_dflash_speedup": 1.375,
        "cpu_domino_acceptance": 2.2125,
    }
    for figure in found:
        check_figure(figure["id"], figure)
    assert "width 6" in found[1]["unit"] and "width 5" in found[2]["unit"]


def test_total_row_is_all_tokens_by_all_time() -> None:
    """Prevents the total from being a mean of workloads; Domino: 240 tokens in 7.5 s, AR in 15."""
    total = {row.arm: row for row in rows(measured()) if row.workload == "total"}
    assert total["domino"].tokens_per_s == pytest.approx(32.0)
    assert total["domino"].vs_ar == pytest.approx(15 / 7.5)
    assert total["domino"].acceptance_length == pytest.approx(118 / 60)
    assert [row.arm for row in rows(measured())[:4]] == ["transformers", "ar", "dflash", "domino"]


def test_one_other_token_in_float32_is_an_error_and_keeps_no_figure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prevents speed bought with another answer; in bfloat16 it is reported only."""
    other = measured(last=7)
    assert [s.key for s in other.differing()] == [("humaneval", 1)]
    assert not other.is_exact
    assert measured("bfloat16", last=7).is_exact
    assert kept_figures(other, ORIGIN, CPU) == []
    assert "exact: False" in capsys.readouterr().err
    domino = [row for row in rows(other) if row.arm == "domino"]
    assert [row.identical for row in domino] == [1.0, 0.5, 0.75, 0.75]


def test_a_busy_machine_keeps_no_figure() -> None:
    """Prevents a figure of what else ran: waiting threads slow some arms tenfold, others little."""
    assert kept_figures(measured(other_work=0.4), ORIGIN, CPU) == []
    assert len(kept_figures(measured(other_work=0.1), ORIGIN, CPU)) == 4


def test_the_result_file_quotes_no_prompt_and_no_answer() -> None:
    """Prevents data sets without a licence from being committed with the results."""
    text = json.dumps(as_json(measured()))
    assert "secret" not in text
    assert "token_ids" not in text
    assert json.loads(text)["samples"][0]["identical"] is True


def test_tables_have_a_line_per_arm_and_workload() -> None:
    """Prevents a table that loses an arm: 4 arms by 2 workloads, macro and total, and two heads."""
    assert len(table(measured()).splitlines()) == 4 * 4 + 2
    assert len({len(line) for line in table(measured()).splitlines()}) == 1
    assert [line.split()[1] for line in sweep_table(measured().sweep).splitlines()[2:]] == [
        "ar",
        "dflash",
        "domino",
        "transformers",
    ]


def test_the_best_width_has_the_most_tokens_per_second() -> None:
    """Prevents choosing by acceptance length, which the widest always wins."""
    speeds = {("dflash", 4): 9, ("dflash", 8): 8, ("domino", 4): 10, ("domino", 8): 11}
    sweep = [sample(arm, width, "gsm8k", 0, speed) for (arm, width), speed in speeds.items()]
    assert best_widths(sweep) == {"dflash": 4, "domino": 8}


def test_every_arm_comes_first_in_turn() -> None:
    """Prevents one arm from always running on caches that the same other one left."""
    assert ["".join(rotated("abc", by)) for by in range(4)] == ["abc", "bca", "cab", "abc"]


def test_widths_are_chosen_on_other_prompts_than_those_measured() -> None:
    """Prevents a width that was fitted to the prompts of the figure."""
    prompts = Prompts(texts={"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}, count=2)
    assert [p.text for p in prompts.timed(2)] == ["a0", "b0", "a1", "b1"]
    assert [p.text for p in prompts.timed(1)] == ["a0", "b0"]
    assert [p.text for p in prompts.held_out(1)] == ["a2", "b2"]


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(argv)


def test_only_the_full_run_keeps_figures() -> None:
    """Prevents a shortened run, or one of another draft, from becoming the newest figure."""
    assert is_full(parsed())
    assert is_full(parsed("--prompts", "16", "--dtype", "float32", "--json", "result.json"))
    for argv in (["--quick"], ["--prompts", "4"], ["--dtype", "bfloat16"], ["--draft", "x"]):
        assert not is_full(parsed(*argv))


def test_bfloat16_is_a_shorter_run_after_float32() -> None:
    """Prevents figures from the wrong dtype: they come from the first plan."""
    float32, bfloat16 = plans(parsed())
    assert (float32.dtype, float32.prompts, float32.max_tokens) == ("float32", 16, 128)
    assert (bfloat16.dtype, bfloat16.prompts, bfloat16.max_tokens) == ("bfloat16", 3, 48)
    assert [plan.max_tokens for plan in plans(parsed("--quick"))] == [32, 32]
    assert [plan.dtype for plan in plans(parsed("--dtype", "bfloat16"))] == ["bfloat16"]


@pytest.mark.parametrize("value", ["1", "0", "4,x", "4,1", ""])
def test_impossible_widths_are_refused(value: str) -> None:
    """Prevents a sweep that compares plain decoding with itself."""
    with pytest.raises(SystemExit):
        parsed("--widths", value)
    assert parsed("--widths", "4,8").widths == (4, 8)
