"""Answers on disk as they come: a folder that an interrupted `data regenerate` goes on from.

answers.jsonl has finished answers, truncated.jsonl those that reached the limit, failed.jsonl
prompts without one, each line with the prompt's place in the source, counted from 1.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from training.engine_answers import Failed
from training.errors import TrainingError
from training.regenerate import Answered

ABOUT, ANSWERS, TRUNCATED, FAILED = (
    "regenerate.json",
    "answers.jsonl",
    "truncated.jsonl",
    "failed.jsonl",
)


class AnswerJournal:
    """A context manager. done: places of the prompts that need no answer any more, from 0."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Raises TrainingError when the folder's answers were made from or for something else."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.done = folder, set[int]()
        _refuse_other(folder / ABOUT, about)
        for name in (ANSWERS, TRUNCATED, FAILED):
            self.done |= {line["line"] - 1 for line in _whole_lines(folder / name)}
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        self._files = {
            name: (folder / name).open("a", encoding="utf-8")
            for name in (ANSWERS, TRUNCATED, FAILED)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, found: Answered | Failed) -> None:
        """Keeps what became of a prompt, at once."""
        if isinstance(found, Failed):
            self._write(FAILED, found.prompt, {"reason": found.reason})
        else:
            name = ANSWERS if found.ended else TRUNCATED
            self._write(name, found.prompt, {"ids": found.tokens})

    def answers(self, *, truncated: bool) -> Iterator[Answered]:
        """In the order of the prompts; with those that reached the limit, or without."""
        found = [(True, line) for line in _whole_lines(self._folder / ANSWERS)]
        if truncated:
            found += [(False, line) for line in _whole_lines(self._folder / TRUNCATED)]
        for ended, line in sorted(found, key=lambda pair: pair[1]["line"]):
            yield Answered(prompt=line["line"] - 1, tokens=line["ids"], ended=ended)

    def counts(self) -> dict[str, int]:
        """Lines of each file."""
        names = {"answered": ANSWERS, "truncated": TRUNCATED, "failed": FAILED}
        return {key: len(_whole_lines(self._folder / name)) for key, name in names.items()}

    def _write(self, name: str, place: int, what: Mapping[str, Any]) -> None:
        self._files[name].write(json.dumps({"line": place + 1, **what}) + "\n")
        self._files[name].flush()
        self.done.add(place)


def _refuse_other(file: Path, about: Mapping[str, Any]) -> None:
    if not file.exists():
        return
    before = json.loads(file.read_text())
    for name, value in about.items():
        if before.get(name) != value:
            raise TrainingError(
                f"{name}: {value!r}, but the answers in {file.parent} are of {before.get(name)!r}; "
                "choose another OUT, or the settings of before"
            )


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """Lines that were written to their end; the rest of a killed process's last one is removed."""
    if not file.exists():
        return []
    data = file.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with file.open("r+b") as stream:
            stream.truncate(end)
    return [json.loads(line) for line in data[:end].splitlines()]
