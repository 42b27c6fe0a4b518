"""The figures of a full `bench serve` run that benchmarks.collect keeps: macro speed-ups."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks import provenance
from benchmarks.serve_cell import PLAIN, Cells

Figure = dict[str, Any]


def figures(cells: Cells, args: argparse.Namespace, origin: Mapping[str, Any]) -> list[Figure]:
    """Per load, the best Domino arm's macro speed-up over AR; its unit names the arm.

    embedded_cpu_macro_speedup_c8 and so on; another pair of models has its name instead.
    """
    pair = "embedded" if args.target is None and args.draft is None else "serve"
    pair = "synthetic" if args.synthetic_acceptance else pair
    kind = "cpu" if args.device == "cpu" else "gpu"
    found = []
    for load in cells.loads:
        macros = {arm: cells.macro(arm, load) for arm in cells.arms if arm.startswith("domino")}
        known = {arm: value for arm, value in macros.items() if value is not None}
        if not known or PLAIN not in cells.arms:
            continue
        arm = max(known, key=lambda name: known[name])
        name = f"{pair}_{kind}_macro_speedup_{load.lower()}"
        found.append(figure(name, known[arm], f"x AR ({args.dtype}, {arm})", args, origin))
    return found


def figure(
    name: str, value: float, unit: str, args: argparse.Namespace, origin: Mapping[str, Any]
) -> Figure:
    return {
        "id": name,
        "value": round(value, 4),
        "unit": unit,
        "goal": None,
        "lower_is_better": False,
        "hardware": provenance.hardware(args.device),
        **{key: origin[key] for key in ("date", "versions", "command")},
    }
