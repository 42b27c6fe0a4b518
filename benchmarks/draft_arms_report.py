"""`python -m benchmarks.draft_arms_report OUT... --json FILE`: runs of benchmarks.draft_arms in, a
table of the heads and the figures for benchmarks/summary.json out.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.text_table import text_table

MACRO = ("gsm8k", "humaneval", "mt-bench", "math500")
# id, the head whose best arm (of those with most seeds) it is of, over which arm, goal
IDS = (
    ("embedded_domino_over_dflash_acceptance", "domino", "dflash", 1.15),
    ("embedded_dspark_acceptance_macro_b16", "dspark", None, None),
)
LEAST_SEEDS = 3  # by seeds a macro moves by 0.06 to 0.12
Lines = Sequence[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_arms_report")
    parser.add_argument("out", nargs="+", type=Path, help="folders of benchmarks.draft_arms")
    parser.add_argument("--steps", type=Path, nargs="*", default=[], help="of draft_arms_steps")
    parser.add_argument("--json", type=Path, help="where the result goes")
    args = parser.parse_args(argv)
    lines = [
        json.loads(line)
        for folder in args.out
        for line in (folder / "arms.jsonl").read_text().splitlines()
    ]
    about = [json.loads((folder / "about.json").read_text()) for folder in args.out]
    rows = [summed(lines, *key) for key in dict.fromkeys((x["arm"], x["equal"]) for x in lines)]
    times = {arm: ms for file in args.steps for arm, ms in json.loads(file.read_text()).items()}
    for row in rows:
        row |= with_times(row["macro"], times.get(row["arm"]))
    print(shown(rows))
    if args.json:
        result = {"benchmark": "draft_arms", **together(about), "arms": rows, "runs": lines}
        result["figures"] = figures(rows, result, about[0])
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def macro(line: dict[str, Any], kind: str = "acceptance") -> float:
    """Mean of the workloads' acceptance lengths, those that are there."""
    return statistics.mean(
        float(line[kind][w]["acceptance_length"]) for w in MACRO if w in line[kind]
    )


def summed(lines: Lines, arm: str, equal: str) -> dict[str, Any]:
    """An arm over its seeds."""
    some = [x for x in lines if (x["arm"], x["equal"]) == (arm, equal)]
    first = min(some, key=lambda x: int(x["seed"]))
    found: dict[str, Any] = {
        "arm": arm,
        "equal": equal,
        "changes": first["changes"],
        "seeds": len(some),
        "steps": round(statistics.mean(x["steps"] for x in some)),
        # Other work on the device only adds.
        "ms_a_step": round(min(x["ms_a_step"] for x in some), 2),
        "parameters": first["parameters"],
        "macro": round(statistics.mean(map(macro, some)), 4),
        "macro_by_seed": [round(macro(x), 4) for x in sorted(some, key=lambda x: int(x["seed"]))],
        "workloads": {
            w: round(statistics.mean(x["acceptance"][w]["acceptance_length"] for x in some), 4)
            for w in first["acceptance"]
        },
        "accepted_shares": {w: v["accepted_shares"] for w, v in first["acceptance"].items()},
    }
    if "base" in first:
        found["base_macro"] = round(macro(first, "base"), 4)
    return found


def with_times(length: float, times: dict[str, float] | None) -> dict[str, Any]:
    """What a step takes and what it yields: tokens a millisecond of drafting and verifying."""
    if times is None:
        return {}
    spent = {c: times[f"draft_{c}"] + times[f"verify_{c}"] for c in ("c1", "c8")}
    yields = {f"tokens_a_ms_{c}": round(length / ms, 4) for c, ms in spent.items()}
    return {"step_ms": times, **yields}


def together(about: Lines) -> dict[str, Any]:
    """Where the processes' figures come from; clean when all ran the one commit."""
    first, commits = about[0], {a["tree"]["commit"] for a in about}
    clean = all(a["tree"]["clean"] for a in about) and len(commits) == 1
    changed = sorted({c for a in about for c in a["tree"].get("changed", ())})
    tree = {"commit": first["tree"]["commit"], "clean": clean, "changed": changed}
    kept = {key: first[key] for key in ("date", "hardware", "versions", "command")}
    return {**kept, "tree": tree, "documents": first["documents"], "rows": first["rows"]}


def figures(rows: Lines, result: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    """Domino over DFlash, DSpark's best, and the trainer's speed; of arms with enough seeds."""
    by = {x["arm"]: x for x in rows if x["equal"] == "steps" and x["seeds"] >= LEAST_SEEDS}
    origin = {key: result[key] for key in ("hardware", "date", "versions", "command")}
    found: list[dict[str, Any]] = []

    def add(name: str, value: float, unit: str, goal: float | None) -> None:
        about = {"id": name, "value": round(value, 4), "unit": unit, "goal": goal}
        found.append({**about, "lower_is_better": False, **origin})

    how = "macro of GSM8K, HumanEval, MT-Bench, MATH500 at width 16, greedy, bfloat16"
    for name, head, other, goal in IDS:
        some = [row for row in by.values() if row["arm"].startswith(head)]
        if not some or (other and other not in by):
            continue
        most = max(int(row["seeds"]) for row in some)
        best = max((x for x in some if x["seeds"] == most), key=lambda row: float(row["macro"]))
        value, unit = best["macro"], "tokens per verify step"
        if other:
            value, unit = value / by[other]["macro"], f"x {other}"
        settings = " ".join((best["arm"], *best["changes"]))
        same = f"{settings}; {best['steps']} steps, mean of {most} seeds; {how}"
        add(name, value, f"{unit} ({same})", goal)
    if "domino" in by:
        speed = about["tokens_a_step"] / by["domino"]["ms_a_step"] * 1e3
        unit = "tokens of packed rows a second, 64 blocks of 16 in 640 (one H200)"
        add("train_tokens_per_s_embedded", speed, unit, None)
    return found


def shown(rows: Lines) -> str:
    """One line an arm, first those of equal steps."""
    head = ["arm", "equal", "seeds", "steps", "ms", "params", "macro", "base"]
    head += ["draft c1", "verify c1", "tok/ms c1", "tok/ms c8"]
    body = [
        [
            row["arm"],
            row["equal"],
            str(row["seeds"]),
            str(row["steps"]),
            f"{row['ms_a_step']:.2f}",
            f"{row['parameters'] / 1e6:.1f}M",
            f"{row['macro']:.3f}",
            f"{row['base_macro']:.3f}" if "base_macro" in row else "",
            *(
                f"{row['step_ms'][k]:.3f}" if "step_ms" in row else ""
                for k in ("draft_c1", "verify_c1")
            ),
            *(f"{row[k]:.3f}" if k in row else "" for k in ("tokens_a_ms_c1", "tokens_a_ms_c8")),
        ]
        for row in sorted(rows, key=lambda r: str(r["equal"]))
    ]
    return text_table(head, body)


if __name__ == "__main__":
    sys.exit(main())
