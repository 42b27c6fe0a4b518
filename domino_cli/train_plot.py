"""`domino-serve train plot RUN`: metrics.jsonl in, one self-contained HTML page of curves out."""

import importlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from domino_cli.errors import CommandError, UsageError

PAGE, METRICS = "curves.html", "metrics.jsonl"
STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
svg { width: 100%; margin: .8em 0; } svg text { font-size: 11px; fill: #333; } .g { stroke: #ddd; }
"""
# Title, unit, and the curves by their names in metrics.jsonl.
PLOTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Loss", "nats a token", ("final_loss", "base_loss", "loss")),
    ("Accuracy", "share", ("accuracy", "base_accuracy", "top5", "base_top5")),
    ("Teacher-forced acceptance", "tokens a step", ("accept_len", "base_accept_len")),
    ("Share of the base branch in the loss", "lambda", ("lambda",)),
    ("Learning rate", "lr", ("lr",)),
    ("Gradient norm", "before clipping", ("grad_norm",)),
    ("Speed", "tokens/s", ("tokens_per_s",)),
    ("GPU memory", "GB", ("gpu_memory_gb",)),
)
Line = Mapping[str, Any]
Curves = dict[str, list[tuple[float, float]]]


def plot(run: Path, out: Path | None = None) -> Path:
    """Writes RUN/curves.html (or `out`); raises UsageError where the run has no figures."""
    lines = read_metrics(run)
    page = "\n".join(
        [
            '<!doctype html><meta charset="utf-8">',
            f"<title>{escape(run.name)}</title><style>{STYLE}</style>",
            f"<h1>{escape(run.name)}</h1><p>{len(lines)} lines, last step {last_step(lines)}</p>",
            *_plots(lines),
        ]
    )
    place = out or run / PAGE
    try:
        place.write_text(page + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{place} could not be written: {error}") from error
    return place


def read_metrics(run: Path) -> list[Line]:
    """A step that was run again after a resume has its last figures.

    A line that is still being written, or was cut off, is left out.
    """
    file = run / METRICS
    try:
        text = file.read_text(encoding="utf-8")
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read ({error}); give the folder of a run") from error
    if not found:
        raise UsageError(f"{file}: has no line yet; wait for log_interval steps")
    newest = {(line["step"], "evaluation" in line): line for line in found}
    return [newest[key] for key in sorted(newest)]


def last_step(lines: Sequence[Line]) -> int:
    return int(max(line["step"] for line in lines))


def _plots(lines: Sequence[Line]) -> list[str]:
    svg = _svg()
    found = []
    for title, unit, names in PLOTS:
        if curves := {name: c for name in names if (c := curve(lines, name))}:
            found.append(svg.lines(title, "step", unit, curves))
    evaluations = [line for line in lines if "evaluation" in line]
    if evaluations:
        title = "Acceptance length by real drafting, held-out prompts"
        found.append(svg.lines(title, "step", "tokens a step", workload_curves(evaluations)))
        title = f"Steps that kept at least so many proposals, step {last_step(evaluations)}"
        found.append(svg.lines(title, "position", "share", positions(evaluations[-1])))
    return found


def curve(lines: Sequence[Line], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in lines if name in line]


def workload_curves(evaluations: Sequence[Line]) -> Curves:
    curves: Curves = {}
    for line in evaluations:
        for name, figures in line["evaluation"]["workloads"].items():
            curves.setdefault(name, []).append((line["step"], figures["acceptance_length"]))
        for macro in ("acceptance_macro", "base_acceptance_macro"):
            if macro in line["evaluation"]:
                point = line["step"], line["evaluation"][macro]
                curves.setdefault(macro.replace("acceptance_", ""), []).append(point)
    return curves


def positions(evaluation: Line) -> Curves:
    return {
        name: [(float(i), share) for i, share in enumerate(figures["accepted_shares"], 1)]
        for name, figures in evaluation["evaluation"]["workloads"].items()
    }


def _svg() -> ModuleType:
    try:
        return importlib.import_module("benchmarks.report_svg")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"module {error.name} is missing; plots are made in a clone of the project"
        ) from error
