"""What may become a kept figure, and which of several wins."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.collect import KEYS, SUMMARY, Refused, check_figure, collect
from benchmarks.provenance import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def figure(**changes: Any) -> dict[str, Any]:
    made = {
        "id": "cpu_domino_speedup",
        "value": 1.5,
        "unit": "x",
        "goal": 1.4,
        "lower_is_better": False,
        "hardware": "a processor, 2 cores",
        "date": "2026-11-29T10:00:00+00:00",
        "versions": {"torch": "2.13.0"},
        "command": "domino-serve bench cpu",
    }
    return {**made, **changes}


def result(folder: Path, name: str, *figures: dict[str, Any], clean: bool = True) -> Path:
    file = folder / name
    tree = {"commit": COMMIT, "clean": clean}
    file.write_text(json.dumps({"tree": tree, "figures": list(figures)}))
    return file


def test_the_newest_date_of_an_id_wins_whatever_the_order(tmp_path: Path) -> None:
    """Prevents a summary that keeps the best figure, or the last one named, instead of the newest.

    The newest is worse, named first, and of an earlier wall-clock time in a zone further west.
    """
    newer = result(tmp_path, "b.json", figure(value=1.1, date="2026-11-29T09:30:00-02:00"))
    older = result(tmp_path, "a.json", figure(value=1.9, date="2026-11-29T10:00:00+00:00"))
    summary = tmp_path / "summary.json"
    kept = collect([newer, older], summary, tmp_path)
    assert [(f["value"], f["file"]) for f in kept] == [(1.1, "b.json")]
    assert json.loads(summary.read_text()) == kept


def test_what_was_kept_before_competes_and_other_ids_stay(tmp_path: Path) -> None:
    """Prevents a collection of one benchmark that drops or ages the figures of another."""
    summary = tmp_path / "summary.json"
    first = result(tmp_path, "a.json", figure(), figure(id="cpu_domino_acceptance", goal=None))
    collect([first], summary, tmp_path)
    old = result(tmp_path, "old.json", figure(value=9.0, date="2026-11-28T10:00:00+00:00"))
    kept = collect([old], summary, tmp_path)
    assert [(f["id"], f["value"]) for f in kept] == [
        ("cpu_domino_acceptance", 1.5),
        ("cpu_domino_speedup", 1.5),
    ]
    assert collect([first], summary, tmp_path) == kept


def test_a_result_of_an_uncommitted_tree_is_refused(tmp_path: Path) -> None:
    """Prevents figures of code that nobody else can have; nothing may be written then."""
    dirty = result(tmp_path, "dirty.json", figure(), clean=False)
    with pytest.raises(Refused, match=r"dirty\.json: tree\.clean is False"):
        collect([dirty], tmp_path / "summary.json", tmp_path)
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_refused_naming_file_and_key(tmp_path: Path, key: str) -> None:
    """Prevents figures without unit, machine or date, which compare with nothing."""
    lacking = figure()
    del lacking[key]
    with pytest.raises(Refused, match=rf"result\.json: figures\[1\]: key '{key}' is missing"):
        collect([result(tmp_path, "result.json", figure(), lacking)], tmp_path / "s", tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"figures": []}', "[]", "not json"])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    """Prevents a stack trace, or silence, when another file is named."""
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(Refused, match=r"other\.json: "):
        collect([file], tmp_path / "summary.json", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"value": "1.5"},
        {"value": True},
        {"value": float("nan")},
        {"date": "2026-11-29"},
        {"date": "yesterday"},
        {"lower_is_better": 0},
        {"versions": "2.13"},
    ],
)
def test_a_value_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    """Prevents a summary whose values do not sort, plot or compare."""
    name = next(iter(change))
    with pytest.raises(Refused, match=f"here: {name} is "):
        check_figure("here", figure(**change))


def test_shortened_runs_and_files_from_elsewhere_are_refused(tmp_path: Path) -> None:
    """Prevents figures of a quick run, and figures whose file nobody can open later."""
    root = tmp_path / "repository"
    root.mkdir()
    with pytest.raises(Refused, match="figures is empty"):
        collect([result(root, "quick.json")], root / "summary.json", root)
    with pytest.raises(Refused, match="outside the repository"):
        collect([result(tmp_path, "elsewhere.json", figure())], root / "summary.json", root)


def test_one_date_with_two_values_is_refused(tmp_path: Path) -> None:
    """Prevents an undefined newest."""
    files = [result(tmp_path, f"{n}.json", figure(value=n)) for n in (1.0, 2.0)]
    with pytest.raises(Refused, match="has the date of the one in"):
        collect(files, tmp_path / "summary.json", tmp_path)


@pytest.mark.skipif(not SUMMARY.exists(), reason="no figure has been collected yet")
def test_the_committed_summary_is_well_formed_and_its_files_exist() -> None:
    """Prevents a figure edited by hand, and one whose measurements are gone."""
    figures = json.loads(SUMMARY.read_text())
    ids = [kept["id"] for kept in figures]
    assert ids == sorted(set(ids))
    for kept in figures:
        assert set(kept) == {*KEYS, "file"}
        check_figure(kept["id"], kept)
        assert (ROOT / kept["file"]).is_file(), kept["file"]
        assert datetime.fromisoformat(kept["date"]).tzinfo is not None
        source = json.loads((ROOT / kept["file"]).read_text())
        sources = [{key: found[key] for key in KEYS} for found in source["figures"]]
        assert {key: kept[key] for key in KEYS} in sources
