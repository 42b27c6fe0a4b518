"""`python -m benchmarks.collect RESULT.json...`: results in, benchmarks/summary.json out.

The newest figure of each id wins, of those given and those kept before; nobody picks.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT

SUMMARY = ROOT / "benchmarks" / "summary.json"
Figure = dict[str, Any]

NUMBER = (int, float)
KEYS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "value": NUMBER,
    "unit": (str,),
    "goal": (*NUMBER, type(None)),
    "lower_is_better": (bool,),
    "hardware": (str,),
    "date": (str,),
    "versions": (dict,),
    "command": (str,),
}


class Refused(Exception):
    """A result that may not be kept; names the file, the key and the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    args = parser.parse_args(argv)
    try:
        figures = collect(args.results, SUMMARY, ROOT)
    except Refused as error:
        print(f"benchmarks.collect: {error}", file=sys.stderr)
        return 1
    for figure in figures:
        goal = "" if figure["goal"] is None else f" (goal {figure['goal']:g})"
        print(f"{figure['id']} = {figure['value']:g} {figure['unit']}{goal}, {figure['date']}")
    return 0


def collect(results: Iterable[Path], summary: Path, root: Path) -> list[Figure]:
    """Writes `summary` and returns what is in it. Raises Refused before anything is written."""
    kept = read_json(summary) if summary.exists() else []
    candidates = [*kept, *(figure for file in results for figure in read_result(file, root))]
    figures = newest(candidates)
    summary.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def read_result(file: Path, root: Path) -> list[Figure]:
    """The figures of one result file, each with the file's path relative to `root`."""
    result = read_json(file)
    for key in ("figures", "tree"):
        if not isinstance(result, dict) or key not in result:
            raise Refused(f"{file}: key {key!r} is missing; give a benchmark's own --json output")
    check_tree(file, result["tree"])
    if not result["figures"]:
        raise Refused(f"{file}: figures is empty; shortened or inexact runs keep none")
    for index, figure in enumerate(result["figures"]):
        check_figure(f"{file}: figures[{index}]", figure)
    if not file.resolve().is_relative_to(root.resolve()):
        raise Refused(f"{file}: is outside the repository; commit it beside the summary")
    path = file.resolve().relative_to(root.resolve()).as_posix()
    return [{**{key: figure[key] for key in KEYS}, "file": path} for figure in result["figures"]]


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise Refused(f"{file}: not JSON ({error})") from error


def check_tree(file: Path, tree: Any) -> None:
    for key in ("commit", "clean"):
        if not isinstance(tree, dict) or key not in tree:
            raise Refused(f"{file}: key 'tree.{key}' is missing")
    if tree["clean"] is not True or not tree["commit"]:
        raise Refused(
            f"{file}: tree.clean is {tree['clean']!r}: it ran with uncommitted changes; "
            "commit them and run it again"
        )


def check_figure(where: str, figure: Any) -> None:
    """Raises Refused for a missing key, a value of another type, or a date without a zone."""
    if not isinstance(figure, dict):
        raise Refused(f"{where}: is {figure!r}, not an object")
    for key, types in KEYS.items():
        if key not in figure:
            raise Refused(f"{where}: key {key!r} is missing")
        value = figure[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise Refused(f"{where}: {key} is {value!r}, not {types[0].__name__}")
    if not math.isfinite(figure["value"]):
        raise Refused(f"{where}: value is {figure['value']}, not a finite number")
    try:
        zone = datetime.fromisoformat(figure["date"]).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise Refused(f"{where}: date is {figure['date']!r}, not ISO 8601 with a zone")


def newest(figures: Iterable[Figure]) -> list[Figure]:
    """One figure per id, sorted by id. Two of one id and date must not differ."""
    best: dict[str, Figure] = {}
    for figure in figures:
        rival = best.setdefault(figure["id"], figure)
        age, other = (datetime.fromisoformat(f["date"]) for f in (figure, rival))
        if age == other and figure != rival:
            raise Refused(
                f"{figure['file']}: {figure['id']} has the date of the one in {rival['file']}"
            )
        if age > other:
            best[figure["id"]] = figure
    return [best[name] for name in sorted(best)]


if __name__ == "__main__":
    sys.exit(main())
