"""Samples of a long run in, one JSON line each; what an interrupted run has kept comes out again.

The texts of prompts are not kept: a sample is found again by workload and index.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from benchmarks.sample import Prompt, Sample
from domino_cli.errors import UsageError

Key = tuple[str, int, str, int]  # arm, width, workload, index


@dataclass(frozen=True, slots=True)
class SampleLog:
    """Open for appending; without a file nothing is kept."""

    stream: TextIO | None
    known: dict[Key, dict[str, Any]]

    @classmethod
    def open(cls, file: Path | None, settings: dict[str, Any]) -> "SampleLog":
        """Goes on with `file` where there is one; UsageError when it was made otherwise."""
        if file is None:
            return cls(None, {})
        first, *rows = _lines(file) if file.exists() and file.stat().st_size else [settings]
        differing = [k for k in settings | first if settings.get(k) != first.get(k)]
        if differing:
            name = differing[0]
            raise UsageError(
                f"{file}: has samples of {name} {first.get(name)!r}, this run has "
                f"{settings.get(name)!r}; name another file"
            )
        stream = file.open("a", encoding="utf-8")
        if not file.stat().st_size:
            _write(stream, settings)
        return cls(stream, {(r["arm"], r["width"], r["workload"], r["index"]): r for r in rows})

    def find(self, arm: str, width: int, prompt: Prompt) -> Sample | None:
        """The kept sample of this prompt."""
        row = self.known.get((arm, width, prompt.workload, prompt.index))
        return _sample(row, prompt) if row else None

    def add(self, sample: Sample) -> None:
        """Keeps a sample, at once."""
        if self.stream:
            row = asdict(sample)
            prompt = row.pop("prompt")
            _write(self.stream, row | {"workload": prompt["workload"], "index": prompt["index"]})

    def close(self) -> None:
        if self.stream:
            self.stream.close()


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Whole lines; the last one may have been cut off with the run."""
    text = file.read_text(encoding="utf-8")
    whole, _, cut = text.rpartition("\n")
    if cut:
        file.write_text(whole + "\n", encoding="utf-8")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise UsageError(f"{file}, line {number}: is no JSON ({error})") from None


def _write(stream: TextIO, row: dict[str, Any]) -> None:
    stream.write(json.dumps(row) + "\n")
    stream.flush()


def _sample(row: dict[str, Any], prompt: Prompt) -> Sample:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    del fields["workload"], fields["index"]
    return Sample(prompt=prompt, **fields)
