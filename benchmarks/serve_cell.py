"""Cells of a comparison, and the arithmetic of the published tables over them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

PLAIN = "ar"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One load test: an arm, a load, a workload, a repeat, and loadtest.summary's dictionary.

    incomplete: why not every request succeeded, None when all did. answers: hash of each answer by
    "workload/index/turn".
    """

    arm: str
    load: str
    workload: str
    repeat: int
    summary: dict[str, Any]
    answers: dict[str, str]
    incomplete: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.arm, self.load, self.workload

    @property
    def records_name(self) -> str:
        """File of its records in the run's folder."""
        load = self.load.replace("/", "-per-")
        return f"{self.arm}-{load}-{self.workload}-r{self.repeat}.jsonl"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """All cells of a run; figures of a place are means over its complete repeats."""

    cells: Sequence[Cell]

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(c.arm for c in self.cells))

    @property
    def loads(self) -> list[str]:
        return list(dict.fromkeys(c.load for c in self.cells))

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(c.workload for c in self.cells))

    def at(self, arm: str, load: str, workload: str) -> list[Cell]:
        """Complete repeats."""
        key = (arm, load, workload)
        return [c for c in self.cells if c.key == key and c.incomplete is None]

    def mean(self, figure: str, arm: str, load: str, workload: str) -> float | None:
        """Mean over repeats of one of the summary's figures; None where there is none."""
        values = [c.summary[figure] for c in self.at(arm, load, workload)]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    def speedup(self, arm: str, load: str, workload: str) -> float | None:
        """Output tokens/s over AR's."""
        mine = self.mean("output_throughput", arm, load, workload)
        plain = self.mean("output_throughput", PLAIN, load, workload)
        return mine / plain if mine and plain else None

    def macro(self, arm: str, load: str) -> float | None:
        """Arithmetic mean of the workloads' speed-ups; None unless all are there."""
        return all_mean(self.speedup(arm, load, workload) for workload in self.workloads)

    def overall(self, arm: str) -> float | None:
        """Mean of all workload-by-load speed-ups."""
        return all_mean(self.speedup(arm, at, w) for at in self.loads for w in self.workloads)

    def fastest(self, load: str, workload: str) -> str | None:
        """The speculative arm with the most tokens/s."""
        speeds = {a: self.speedup(a, load, workload) or 0.0 for a in self.arms if a != PLAIN}
        best = max(speeds, key=lambda a: speeds[a], default=None)
        return best if best and speeds[best] else None

    def incomplete(self) -> list[Cell]:
        return [c for c in self.cells if c.incomplete is not None]

    def identical(self, arm: str) -> float | None:
        """Share of the arm's answers that are AR's, over all loads and repeats."""
        plain = {key: h for c in self.cells if c.arm == PLAIN for key, h in c.answers.items()}
        same = [
            plain[key] == answer
            for c in self.cells
            if c.arm == arm
            for key, answer in c.answers.items()
            if key in plain
        ]
        return fmean(same) if same else None


def all_mean(values: Iterable[float | None]) -> float | None:
    """Mean; None when a value is missing, so that no mean hides a hole."""
    found = list(values)
    known = [value for value in found if value is not None]
    return fmean(known) if known and len(known) == len(found) else None
