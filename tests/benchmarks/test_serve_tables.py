"""Tables of `bench serve` against the published ones, and which cells count."""

import argparse

import pytest

from benchmarks.collect import check_figure
from benchmarks.serve_arm import arms
from benchmarks.serve_cell import Cells
from benchmarks.serve_figures import figures
from benchmarks.serve_published import MACRO
from benchmarks.serve_table import tables
from tests.benchmarks.published import ARMS, FASTEST, OVERALL, THROUGHPUT
from tests.benchmarks.serve_inputs import cell


def published() -> Cells:
    return Cells(
        cells=[
            cell(arm, load, workload, speed)
            for load, rows in THROUGHPUT.items()
            for workload, speeds in rows.items()
            for arm, speed in zip(ARMS, speeds, strict=True)
        ]
    )


def test_macros_are_the_published_ones() -> None:
    """Prevents means taken otherwise than in the tables that ours lie beside."""
    found = published()
    for load, expected in MACRO.items():
        macros = {arm: found.macro(arm, load) for arm in ARMS[1:]}
        assert macros == pytest.approx(expected, abs=0.006)
    assert [found.overall(arm) for arm in ARMS[1:]] == pytest.approx(OVERALL, abs=0.006)
    for (load, workload), arm in FASTEST.items():
        assert found.fastest(load, workload) == arm


def test_tables_mark_the_fastest_and_name_the_arms_as_published() -> None:
    """Prevents a table that needs a key to read."""
    titles = {arm.name: arm.title for arm in arms(",".join(ARMS))}
    text = tables(published(), titles)
    assert "**248.0 (5.25x)**" in text and "| 47.2 (1.00x) |" in text
    assert "Domino b16" in text and "DFlash b8" in text
    assert "Answers identical to AR's: DFlash b8 100.0%" in text
    assert "C8, published*" in text and "* Qwen3.6-27B, 2 x A100" in text


def test_repeats_are_averaged_and_partial_cells_are_in_no_mean() -> None:
    """Prevents a crashed repeat from counting as a slow one, and from vanishing."""
    found = Cells(
        cells=[
            cell("ar", "C1", "gsm8k", 10.0),
            cell("ar", "C1", "gsm8k", 20.0, repeat=1),
            cell("domino@8", "C1", "gsm8k", 45.0),
            cell("domino@8", "C1", "gsm8k", 1.0, repeat=1, incomplete="3 failed"),
            cell("dflash@8", "C1", "gsm8k", 1.0, summary={}, incomplete="died"),
        ]
    )
    assert found.speedup("domino@8", "C1", "gsm8k") == pytest.approx(3.0)
    assert found.macro("dflash@8", "C1") is None
    text = tables(found, {arm: arm for arm in found.arms})
    assert "PARTIAL domino@8 C1 gsm8k repeat 2: 3 failed" in text
    assert "PARTIAL dflash@8 C1 gsm8k repeat 1: died" in text


def test_answers_are_compared_with_ars() -> None:
    """Prevents speed bought with another answer."""
    other = cell("domino@8", "C1", "gsm8k", 1.0, answers={"gsm8k/0/0": "b"})
    found = Cells(cells=[cell("ar", "C1", "gsm8k", 1.0), other])
    assert found.identical("domino@8") == 0.0


def test_figures_are_what_collect_takes() -> None:
    """Prevents a long run whose figures cannot be kept; best Domino arm of each load."""
    args = argparse.Namespace(
        target=None, draft=None, device="cpu", dtype="float32", synthetic_acceptance=None
    )
    origin = {"date": "2026-11-29T10:00:00+00:00", "versions": {}, "command": "x"}
    found = {figure["id"]: figure for figure in figures(published(), args, origin)}
    assert found["embedded_cpu_macro_speedup_c1"]["value"] == pytest.approx(4.54, abs=0.006)
    assert "domino@8" in found["embedded_cpu_macro_speedup_c32"]["unit"]
    for name, figure in found.items():
        check_figure(name, figure)
