"""What the flags of `bench serve` start: arms, prompts, room, published lengths."""

import json
from pathlib import Path

import pytest

from benchmarks.serve import main, plan_of, sizes
from benchmarks.serve_arm import arms
from benchmarks.serve_plan import Load, ServePlan, parser, settle
from benchmarks.serve_prompts import Prompts, fitting_prompts
from benchmarks.serve_published import WORKLOADS, published_length
from benchmarks.serve_run import arm_config, servers
from domino_cli.errors import UsageError
from domino_cli.stack import StackConfig
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt
from tests.benchmarks.serve_inputs import tiny_pair


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
