"""The page of plots: well-formed, self-contained, and drawing what it was given."""

import xml.etree.ElementTree as xml
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_html import report
from benchmarks.report_svg import BOTTOM, HEIGHT, TOP, bars, lines, stacks
from benchmarks.serve_cell import Cells
from loadtest.record import to_line
from loadtest.summary import summarise
from tests.benchmarks.serve_inputs import RECORD, cell
from tests.benchmarks.test_timeline import STEP

ORIGIN: dict[str, Any] = {
    "date": "2026-11-29",
    "command": "x",
    "tree": {},
    "versions": {},
    "null_server": {
        "C1": {"output_throughput": 5000.0, "median_icl_ms": 0.2, "p99_icl_ms": 1.0},
    },
}


def rectangles(svg: str) -> list[dict[str, float]]:
    """Bars only: those with a title."""
    root = xml.fromstring(svg)
    found = [r for r in root.iter("rect") if r.find("title") is not None]
    return [{k: float(r.attrib[k]) for k in ("x", "y", "width", "height")} for r in found]


def test_bars_have_heights_in_proportion_and_missing_ones_are_missing() -> None:
    """Prevents a plot that shows other ratios than its numbers."""
    found = rectangles(bars("t", "u", {"C1": {"a": 10.0, "b": None}, "C8": {"a": 5.0, "b": 2.5}}))
    assert [r["height"] for r in found] == pytest.approx([224.0, 112.0, 56.0])
    assert HEIGHT - BOTTOM - TOP == 224


def test_stacked_parts_stand_on_each_other() -> None:
    """Prevents parts that overlap."""
    low, high = rectangles(stacks("t", "ms", {"AR": {"verify": 3.0, "hop": 1.0}}))
    assert high["y"] + high["height"] == pytest.approx(low["y"])
    assert low["height"] == pytest.approx(3 * high["height"])


def test_names_are_escaped_and_curves_drawn() -> None:
    """Prevents a dataset's name from breaking the page."""
    root = xml.fromstring(lines("<t>", "x", "y", {"a & b": [(0.0, 0.0), (2.0, 4.0)]}))
    (curve,) = root.iter("polyline")
    assert len(curve.attrib["points"].split()) == 2
    assert rectangles(bars("none", "u", {})) == []


def test_the_page_needs_nothing_else_and_tells_what_is_partial(tmp_path: Path) -> None:
    """Prevents plots that need a network, and a crash that shows nowhere."""
    record = replace(
        RECORD,
        workload="gsm8k",
        verify_steps=1,
        step_tokens=3,
        proposed_tokens=7,
        accepted_tokens=2,
        accepted_by_position=(1, 1),
    )
    summary = summarise([record], {"request_rate": None, "concurrency": 1, "mode": "domino"})
    one = cell("domino@8", "C1", "gsm8k", 1.0, summary=summary)
    (tmp_path / one.records_name).write_text(to_line(record))
    bad = cell("ar", "C1", "gsm8k", 0.0, summary={}, incomplete="verify died <here>")
    titles = {"domino@8": "Domino b8", "ar": "AR"}
    steps = {"Domino b8": {"count": 1, "sums": {}, "steps": [asdict(STEP)]}}
    page = report(Cells(cells=[one, bad]), titles, steps, "about", ORIGIN, tmp_path)
    assert "PARTIAL: ar C1 gsm8k: verify died &lt;here&gt;" in page
    for word in ("<script", "<link", "<img", "@import", "url("):
        assert word not in page
    for title in ("Acceptance by position", "C1: TTFT", "C1: TPOT", "Where a step's time goes"):
        assert title.replace("'", "&#x27;") in page
    svgs = ["<svg" + part.split("</svg>")[0] + "</svg>" for part in page.split("<svg")[1:]]
    assert len(svgs) == 7
    for svg in svgs:
        xml.fromstring(svg)
