"""Whole speculative steps at Qwen3-8B's shapes on one GPU, both engines in one process.

Weights are RANDOM and acceptance is SYNTHETIC, at the lengths that the Domino authors published:
times say what a cycle (draft, verify, hand-over, host work) costs, nothing about a model. AR is our
own, without a draft or a projection loaded. vLLM's cycles are those of its DFlash on an H200.
"""

import argparse
import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu_pair import GpuPair
from benchmarks.gpu_verify_timing import copy_tb_s
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.pair_steps import LAPS, Load, Pair, Times
from benchmarks.text_table import text_table
from domino_serve.v1 import speculation_pb2 as spec

COMMAND = "python -m benchmarks.gpu_cycle --json FILE"
LABEL = "RANDOM WEIGHTS, SYNTHETIC ACCEPTANCE, Qwen3-8B shapes, bfloat16, prompt 512 + 256"
PROMPT, NEW, MOST = 512, 256, 32
TOKENS = MOST * (PROMPT + NEW + 256)
WIDTHS = {1: 16, 8: 16, 32: 8}  # by concurrency, as published
LENGTHS = {
    spec.MODE_DOMINO: {1: 7.33, 8: 7.35, 32: 5.51},
    spec.MODE_DFLASH: {1: 6.02, 8: 6.00, 32: 4.97},
}
NAMES = {spec.MODE_DOMINO: "domino", spec.MODE_DFLASH: "dflash"}
VLLM_MS = {1: 6.39, 8: 7.35, 32: 9.95}
CYCLE = {1: 6.6, 8: 7.4, 32: 10.2}
SPEEDUP = {1: 5.4, 8: 5.2, 32: 3.1}
OVER_VLLM = {1: 1.15, 8: 1.18, 32: 1.08}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    add_argument(parser)
    options = parser.parse_args()
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    result: dict[str, Any] = {"label": LABEL, "copy_tb_s": copy_tb_s()}
    rows = measured(options.repeats)
    about = {
        "hardware": torch.cuda.get_device_name(),
        "date": date,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
    }
    result |= {**about, "tree": imported_tree(options.tree), "rows": rows}
    result["figures"] = [{**figure, **about} for figure in figures(rows)]
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{LABEL}; copy {result['copy_tb_s']:.2f} TB/s\n\n{table(rows)}\n")
    for found in result["figures"]:
        print(found["id"], found["value"], "goal", found["goal"])


def measured(repeats: int) -> list[dict[str, Any]]:
    """One row an arm and concurrency: of the repeats the one of median speed."""
    pair = GpuPair()
    plain = pair.plain(max_sequences=MOST, tokens=TOKENS)
    rows = [row("ar", load_of(count, None), plain, repeats) for count in WIDTHS]
    del plain
    drafted = pair.drafted(max_sequences=MOST, tokens=TOKENS, widths=[1, 8, 16])
    rows += [row(NAMES[m], load_of(c, m), drafted, repeats) for m in LENGTHS for c in WIDTHS]
    return rows


def load_of(concurrency: int, mode: spec.Mode.ValueType | None) -> Load:
    size: dict[str, Any] = {"concurrency": concurrency, "prompt": PROMPT, "new": NEW}
    if mode is None:
        return Load(**size)
    length = str(LENGTHS[mode][concurrency])
    return Load(**size, width=WIDTHS[concurrency], mode=mode, acceptance=length)


def row(arm: str, load: Load, pair: Pair, repeats: int) -> dict[str, Any]:
    pair.run(load)  # warms up
    runs = sorted((pair.run(load) for _ in range(repeats)), key=lambda run: run.tok_s)
    middle: Times = runs[len(runs) // 2]
    found = {"arm": arm, "concurrency": load.concurrency, "width": load.width, **asdict(middle)}
    found["acceptance"] = load.acceptance
    print(json.dumps(found), flush=True)
    return found


def figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The issue's, with their goals."""
    by = {(row["arm"], row["concurrency"]): row for row in rows}
    found = []
    for count in WIDTHS:
        domino, plain = by["domino", count], by["ar", count]
        length = LENGTHS[spec.MODE_DOMINO][count]
        theirs = count * LENGTHS[spec.MODE_DFLASH][count] / VLLM_MS[count]
        ours = count * length / domino["ms"]
        speedup = length * plain["ms"] / domino["ms"]
        found += [
            figure(f"cycle_ms_8b_c{count}", domino["ms"], "ms", CYCLE[count], lower=True),
            figure(f"synthetic_macro_speedup_8b_c{count}", speedup, "x AR", SPEEDUP[count]),
            figure(f"domino_over_vllm_dflash_c{count}", ours / theirs, "ratio", OVER_VLLM[count]),
        ]
    return found


def figure(
    name: str, value: float, unit: str, goal: float, *, lower: bool = False
) -> dict[str, Any]:
    kind = "random weights, synthetic acceptance"
    met = value <= goal if lower else value >= goal
    return {"id": name, "value": round(value, 4), "unit": f"{unit} ({kind})", "goal": goal} | {
        "lower_is_better": lower,
        "met": met,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A row an arm and concurrency."""
    head = ("arm", "C", "width", "ms", "tokens", "tok/s", *LAPS)
    lines = []
    for r in rows:
        cells = [r["arm"], str(r["concurrency"]), str(r["width"]), f"{r['ms']:.3f}"]
        cells += [f"{r['tokens']:.2f}", f"{r['tok_s']:.0f}"]
        lines.append(cells + [f"{r['laps'][lap]:.3f}" for lap in LAPS])
    return text_table(head, lines)


if __name__ == "__main__":
    main()
