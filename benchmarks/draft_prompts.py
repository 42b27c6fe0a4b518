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

from benchmarks.packages import read
from benchmarks.workloads import BENCHMARKS, HELD_OUT_RECORDS, WORKLOADS
from domino_cli.progress import say
from training.prompt_sets import (
    shuffled,
    standard_library,
    truncated_json_list,
    user_turns,
    without_benchmarks,
)
from training.word_problems import word_problems

CHAT, CODE, PROBLEMS = 36_000, 14_000, 22_000  # prompts at most, before the benchmarks' are removed
HELD_OUT = 64  # prompts of each workload
HELD_OUT_TURNS = 32


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_prompts", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="OUT")
    folder: Path = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    workloads = {name: w.prompts(read(w.file)) for name, w in WORKLOADS.items()}
    benchmarks = [prompt for name in BENCHMARKS for prompt in workloads[name]]
    records = truncated_json_list(read(WORKLOADS["sharegpt"].file).decode())
    trained = list(records)[:-HELD_OUT_RECORDS]
    chat = shuffled(without_benchmarks(user_turns(trained), benchmarks), 0)[:CHAT]
    code = shuffled(without_benchmarks(standard_library(), benchmarks), 0)[:CODE]
    problems = list(without_benchmarks(word_problems(PROBLEMS, 0), benchmarks))
    say(f"{len(chat)} users' turns, {len(code)} functions, {len(problems)} problems")
    prompts = shuffled([*chat, *code, *problems], 1)
    write(folder / "prompts.jsonl", ({"text": text} for text in prompts))
    write(folder / "benchmarks.jsonl", ({"text": text} for text in benchmarks))
    kept = {n: p[: HELD_OUT_TURNS if n == "sharegpt" else HELD_OUT] for n, p in workloads.items()}
    lines = ({"workload": name, "text": text} for name, texts in kept.items() for text in texts)
    write(folder / "held_out.jsonl", lines)
    return 0


def write(file: Path, lines: Iterable[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
