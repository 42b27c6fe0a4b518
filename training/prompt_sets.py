"""Prompts to train on, from what installs: users' turns, the standard library, made-up problems.

Benchmark prompts are kept out by their runs of words.
"""

import ast
import json
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

RUN = 8  # words in a row that two texts share only if one was taken from the other
LONGEST = 1200  # characters
PROGRAM = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{stub}\n```"
)
REQUEST = "Write a Python function `{name}`. {about}"


def user_turns(conversations: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Human turns of ShareGPT records, mostly ASCII ones of a moderate length."""
    for record in conversations:
        for turn in record.get("conversations", []):
            text = str(turn.get("value", "")).strip()
            plain = sum(c.isascii() for c in text) >= 0.95 * len(text)
            if turn.get("from") == "human" and 8 <= len(text) <= LONGEST and plain:
                yield text


def truncated_json_list(text: str) -> Iterator[dict[str, Any]]:
    """Whole records of a JSON list whose end may be cut off."""
    decoder, place = json.JSONDecoder(), text.index("[") + 1
    while True:
        skipped = re.compile(r"[\s,]*").match(text, place)
        assert skipped is not None
        try:
            record, place = decoder.raw_decode(text, skipped.end())
        except json.JSONDecodeError:
            return
        yield record


def standard_library(folder: Path | None = None) -> Iterator[str]:
    """Functions with a docstring, as programming problems in two forms."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        inside = file.relative_to(root).as_posix()
        if "test" in inside or "site-packages" in inside:
            continue
        try:
            source = file.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (UnicodeDecodeError, SyntaxError):
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (about := ast.get_docstring(node)):
                end = node.body[0].end_lineno
                stub = "\n".join(lines[node.lineno - 1 : end])
                shift = len(stub) - len(stub.lstrip())
                stub = "\n".join(
                    line[min(shift, len(line) - len(line.lstrip())) :] for line in stub.split("\n")
                )
                if 40 <= len(stub) <= LONGEST:
                    yield PROGRAM.format(stub=stub + "\n")
                    yield REQUEST.format(name=node.name, about=about.split("\n\n")[0])


def word_runs(text: str) -> set[tuple[str, ...]]:
    """Runs of words, case and punctuation apart."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


def without_benchmarks(texts: Iterable[str], benchmarks: Iterable[str]) -> Iterator[str]:
    """Texts, each once, that share no run of words with a benchmark's prompt, formats apart.

    A run that many prompts of one benchmark share is its format, not a prompt.
    """
    counts: dict[tuple[str, ...], int] = {}
    known = list(benchmarks)
    for prompt in known:
        for run in word_runs(prompt):
            counts[run] = counts.get(run, 0) + 1
    forbidden = {run for run, count in counts.items() if count <= max(2, len(known) // 50)}
    seen: set[str] = set()
    for text in texts:
        if text not in seen and not word_runs(text) & forbidden:
            seen.add(text)
            yield text


def shuffled(texts: Iterable[str], seed: int) -> list[str]:
    """In random order, so that any prefix is a fair mix."""
    found = list(texts)
    random.Random(seed).shuffle(found)
    return found
