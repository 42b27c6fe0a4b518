"""A comparison as one page that needs nothing else: plots and tables of `bench serve`."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.report_svg import bars, lines, stacks
from benchmarks.serve_cell import Cells
from benchmarks.serve_null import null_line
from benchmarks.serve_table import tables
from benchmarks.timeline import means_ms, timeline_table
from loadtest.percentiles import percentile
from loadtest.prompts import label
from loadtest.record import Record, read_records
from loadtest.summary import tpot_s

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
svg { width: 100%; margin: .8em 0; } svg text { font-size: 11px; fill: #333; }
.g { stroke: #ddd; } pre { overflow-x: auto; background: #f6f6f4; padding: 1em; font-size: 12px; }
.bad { color: #a00; }
"""
CURVE = tuple(range(0, 101, 2))  # percentiles drawn


def report(
    cells: Cells,
    titles: Mapping[str, str],
    timelines: Mapping[str, Mapping[str, Any]],
    about: str,
    origin: Mapping[str, Any],
    out: Path,
) -> str:
    """The page. Latencies come from the records beside it; a partial run says so at the top."""
    plots = [*throughput(cells, titles), *acceptance(cells, titles), *latencies(cells, titles, out)]
    if timelines:
        columns = {title: means_ms(found) for title, found in timelines.items()}
        plots.append(stacks("Where a step's time goes", "ms a decoding step, mean", columns))
    warnings = [f"{c.arm} {c.load} {c.workload}: {c.incomplete}" for c in cells.incomplete()]
    body = [
        f"<h1>Serving benchmark</h1><p>{escape(about)}</p>",
        "".join(f'<p class="bad">PARTIAL: {escape(line)}</p>' for line in warnings),
        *plots,
        pre(tables(cells, dict(titles))),
        *(f"<h2>{escape(t)}</h2>{pre(timeline_table(f))}" for t, f in timelines.items()),
        pre(null_line(origin["null_server"])),
        pre(json.dumps({k: origin[k] for k in ("date", "command", "tree", "versions")}, indent=1)),
    ]
    head = f'<meta charset="utf-8"><title>Serving benchmark</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(body)}</body></html>\n"


def throughput(cells: Cells, titles: Mapping[str, str]) -> list[str]:
    """Output tokens/s by load and arm, a plot a workload, and the macro speed-ups."""
    found = []
    for workload in cells.workloads:
        groups = {
            load: {
                titles[a]: cells.mean("output_throughput", a, load, workload) for a in cells.arms
            }
            for load in cells.loads
        }
        found.append(bars(f"{label(workload)}: output throughput", "tokens/s", groups))
    macro = {load: {titles[a]: cells.macro(a, load) for a in cells.arms} for load in cells.loads}
    return [*found, bars("Macro speed-up over AR", "x", macro)]


def acceptance(cells: Cells, titles: Mapping[str, str]) -> list[str]:
    """Share of steps that accepted each position, over all workloads and loads."""
    curves = {}
    for arm in cells.arms:
        if found := positions(cells, arm):
            curves[titles[arm]] = [(float(i), rate) for i, rate in enumerate(found, start=1)]
    if not curves:
        return []
    return [lines("Acceptance by position", "position in the block", "share of steps", curves)]


def positions(cells: Cells, arm: str) -> list[float]:
    """Weighted by the steps of each cell."""
    totals: dict[int, float] = {}
    steps = 0
    for cell in (c for c in cells.cells if c.arm == arm and c.incomplete is None):
        drafts = cell.summary["spec_decode_num_drafts"]
        steps += drafts
        for place, rate in enumerate(cell.summary["spec_decode_per_position_acceptance_rates"]):
            totals[place] = totals.get(place, 0.0) + rate * drafts
    return [totals[place] / steps for place in sorted(totals)] if steps else []


def latencies(cells: Cells, titles: Mapping[str, str], out: Path) -> list[str]:
    """Distributions of TTFT, TPOT and E2E of each load, a curve an arm."""
    found = []
    for load in cells.loads:
        records = {titles[arm]: records_of(cells, arm, load, out) for arm in cells.arms}
        for name, value in (
            ("TTFT", lambda r: r.ttft_s),
            ("TPOT", lambda r: tpot_s(r) if r.tokens > 1 else None),
            ("E2E", lambda r: r.e2e_s),
        ):
            curves = {title: curve([value(r) for r in of_arm]) for title, of_arm in records.items()}
            shown = {title: points for title, points in curves.items() if points}
            if shown:
                found.append(lines(f"{load}: {name}", "ms", "percentile", shown))
    return found


def records_of(cells: Cells, arm: str, load: str, out: Path) -> list[Record]:
    found: list[Record] = []
    for cell in (c for c in cells.cells if (c.arm, c.load) == (arm, load)):
        file = out / cell.records_name
        found += [r for r in read_records(file) if r.ok] if file.exists() else []
    return found


def curve(values: Sequence[float | None]) -> list[tuple[float, float]]:
    ordered = sorted(value for value in values if value is not None)
    return [(1e3 * percentile(ordered, p), float(p)) for p in CURVE] if ordered else []


def pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
