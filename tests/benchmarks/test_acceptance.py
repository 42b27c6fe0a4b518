"""The acceptance benchmark's bookkeeping: which answers are asked for, kept and counted."""

import argparse
from pathlib import Path

import pytest

from benchmarks.acceptance import answer_all, groups, names, parser
from benchmarks.arms import ServiceArm
from benchmarks.sample import Prompt, Sample
from benchmarks.sample_log import SampleLog
from benchmarks.workloads import WORKLOADS
from domino_cli.errors import CommandError, UsageError

SETTINGS = {"draft_hash": "abc", "max_tokens": 8}
PROMPTS = [
    Prompt(workload=name, index=i, text=f"{name} {i}")
    for name in ("gsm8k", "mt-bench")
    for i in (0, 1, 2)
]


class CountingArm(ServiceArm):
    """Answers with the prompt's index + 1 steps of two tokens; fails once it has done `limit`."""

    def __init__(self, name: str, limit: int = 1000) -> None:
        self.name, self.width, self.limit = name, 16, limit  # type: ignore[assignment]
        self.asked: list[Prompt] = []

    def answer(self, prompt: Prompt, max_tokens: int) -> Sample:
        if len(self.asked) == self.limit:
            raise CommandError("the services died")
        self.asked.append(prompt)
        steps = prompt.index + 1
        return Sample(
            arm=self.name,
            width=self.width,
            prompt=prompt,
            token_ids=(1,) * (2 * steps + 1),
            ttft_s=0.5,
            total_s=1.0,
            verify_steps=steps,
            step_tokens=2 * steps,
            accepted_by_position=(steps, 0),
        )


def run(file: Path | None, arms: list[CountingArm]) -> list[Sample]:
    args = argparse.Namespace(concurrency=1, max_tokens=8, samples=file)
    log = SampleLog.open(file, SETTINGS)
    try:
        return answer_all(arms, PROMPTS, args, log)
    finally:
        log.close()


def test_an_interrupted_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Prevents an hour's run that starts anew, counts an answer twice or leaves one out."""
    file = tmp_path / "samples.jsonl"
    with pytest.raises(CommandError):
        run(file, [CountingArm("dflash", limit=4), CountingArm("domino")])
    kept = file.read_text()
    file.write_text(kept + kept.splitlines()[-1][:20])  # killed while it wrote
    again = [CountingArm("dflash"), CountingArm("domino")]
    samples = run(file, again)
    assert again[0].asked == PROMPTS[4:]
    assert again[1].asked == PROMPTS[3:], "those of the first workload are there"
    whole = run(None, [CountingArm("dflash"), CountingArm("domino")])
    assert len(samples) == len(whole) == 12
    for (name, found), (_, expected) in zip(groups(samples), groups(whole), strict=True):
        assert sorted(found, key=lambda s: s.prompt.index) == expected, name
    done = [CountingArm("dflash"), CountingArm("domino")]
    assert len(run(file, done)) == 12
    assert done[0].asked == done[1].asked == []


def test_samples_of_another_draft_are_refused(tmp_path: Path) -> None:
    """Prevents a table that mixes two drafts, or two lengths."""
    file = tmp_path / "samples.jsonl"
    SampleLog.open(file, SETTINGS).close()
    with pytest.raises(UsageError, match="draft_hash 'abc', this run has 'def'; name another file"):
        SampleLog.open(file, SETTINGS | {"draft_hash": "def"})
    file.write_text("no json\n")
    with pytest.raises(UsageError, match="line 1: is no JSON"):
        SampleLog.open(file, SETTINGS)


def test_all_workloads_in_one_command() -> None:
    """Prevents four runs, each of which loads the models."""
    assert names(parser().parse_args(["--workload", "all"]).workload) == list(WORKLOADS)
    given = ["--workload", "mt-bench", "gsm8k", "mt-bench"]
    assert names(parser().parse_args(given).workload) == ["mt-bench", "gsm8k"]
