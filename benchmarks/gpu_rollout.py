"""Proves the Domino rollout on one GPU, then times it; writes a JSON file and prints a table.

Weights are generated (benchmarks/rollout_generator.py); times are graph replays, median of 5 x 100,
milliseconds. "base" is what every draft pays: packing the rows step-major and the bf16 projection.
"""

import argparse
import datetime
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks import rollout_checks
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.rollout_generator import QWEN3_8B, QWEN36_27B, Generated, Shapes, generate
from domino_kernels.rollout import Mode
from domino_kernels.rollout_certified import LARGEST_BATCH

PROPOSALS, POOL = 15, 2048
COMMAND = "python -m benchmarks.gpu_rollout --json FILE"
KINDS: dict[str, tuple[Mode, bool]] = {  # mode, and whether as one launch
    "mode_0": (0, True),
    "certified": ("certified", True),
    "launches_0": (0, False),
    "launches_certified": ("certified", False),
    "k2048": (POOL, False),
}
GOALS = {
    "8b": {1: 1.75, 8: 1.75, 32: 1.45, 64: 1.35},
    "27b": {1: 1.55, 8: 1.55, 64: 1.25},
}
SGLANG_MS = {1: (0.951, 1.85), 8: (1.187, 2.0), 64: (2.890, 1.25)}  # its K=2048 time, our goal


def replay_ms(work: Callable[[], Tensor]) -> float:
    """Milliseconds of one replay of `work` captured: median of 5 rounds of 100."""
    work()
    graph, _ = rollout_checks.capture(work)
    for _ in range(20):
        graph.replay()
    rounds: list[float] = []
    for _ in range(5):
        begin, end = (_event() for _ in range(2))
        begin.record()
        for _ in range(100):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        rounds.append(begin.elapsed_time(end) / 100)
    return statistics.median(rounds)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def base_only(head: Generated, hidden: Tensor) -> float:
    """Packing and projection alone, bf16 in and out."""
    rows, width = hidden.shape[0] * hidden.shape[1], hidden.shape[2]
    packed = torch.empty(hidden.shape[1], hidden.shape[0], width, dtype=hidden.dtype, device="cuda")
    logits = torch.empty(rows, len(head.lm_head), dtype=hidden.dtype, device="cuda")

    def work() -> Tensor:
        packed.copy_(hidden.transpose(0, 1))
        return torch.mm(packed.view(rows, width), head.lm_head.T, out=logits)

    return replay_ms(work)


def time_target(name: str, shapes: Shapes, batches: tuple[int, ...], *, flat: bool) -> list[Any]:
    """One row a batch: times of every mode, and certified equal to mode 0 on the timed inputs."""
    head = generate(shapes, device="cuda", flat=flat)
    largest, rows = max(batches), []
    kinds = {k: v for k, v in KINDS.items() if not flat or k in ("mode_0", "certified")}
    runs = {
        label: rollout_checks.rollout(head, mode, largest, resident=resident)
        for label, (mode, resident) in kinds.items()
    }
    for batch in batches:
        hidden, current = head.inputs(batch, PROPOSALS, batch)
        row: dict[str, Any] = {"target": name, "batch": batch, "flat": flat}
        row["base"] = base_only(head, hidden)
        exact = runs["mode_0"].run(hidden, current).clone()
        rollout_checks.same("certified", runs["certified"].run(hidden, current), exact)
        for label, run in runs.items():
            if label != "launches_certified" or batch <= LARGEST_BATCH:
                ids = run.run(hidden, current)
                row[f"{label}_agrees"] = float((ids == exact).double().mean())
                row[label] = replay_ms(functools.partial(run.run, hidden, current))
        row["exact"] = min(row[label] for label in kinds if label in row and label != "k2048")
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def figures(rows: list[Any], about: dict[str, Any]) -> list[Any]:
    """The issue's figures, lower is better except the ratios to SGLang."""
    found = []

    def add(name: str, value: float, unit: str, goal: float, lower: bool) -> None:
        met = value <= goal if lower else value >= goal
        entry = {"id": name, "value": round(value, 4), "unit": unit, "goal": goal, "met": met}
        found.append(entry | {"lower_is_better": lower} | about)

    for row in rows:
        target, batch = row["target"], row["batch"]
        goal = GOALS[target].get(batch)
        if row["flat"] or goal is None:
            continue
        ratio = row["exact"] / row["base"]
        add(f"rollout_{target}_tp1_exact_over_base_b{batch}", ratio, "ratio", goal, True)
        if target == "8b" and batch in SGLANG_MS:
            theirs, wanted = SGLANG_MS[batch]
            add(f"rollout_over_sglang_b{batch}", theirs / row["exact"], "ratio", wanted, False)
    return found


def prove() -> list[str]:
    """Runs every correctness check; prints and returns a line for each."""
    lines = []
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for check in (
        rollout_checks.modes("cuda", dtypes),
        rollout_checks.adversarial("cuda"),
        rollout_checks.adversarial("cuda", (1, 8), resident=False),
        iter([rollout_checks.graph_equals_eager("cuda")]),
        rollout_checks.mutations("cuda"),
    ):
        for line in check:
            print(line, flush=True)
            lines.append(line)
    return lines


def table(rows: list[Any]) -> str:
    """The rows as a Markdown table, milliseconds."""
    lines = [f"| target (generated weights) | B | base | {' | '.join(KINDS)} | exact/base |"]
    lines.append("|---" * (4 + len(KINDS)) + "|")
    for row in rows:
        times = (f"{row[k]:.3f}" if k in row else "" for k in ("base", *KINDS))
        name = row["target"] + (" flat W2" if row["flat"] else "")
        ratio = row["exact"] / row["base"]
        lines.append(f"| {name} | {row['batch']} | {' | '.join(times)} | {ratio:.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Proves, times, writes the JSON and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--skip-checks", action="store_true")
    add_argument(parser)
    options = parser.parse_args()
    proofs = [] if options.skip_checks else prove()
    rows = time_target("8b", QWEN3_8B, (1, 8, 16, 32, 64), flat=False)
    rows += time_target("8b", QWEN3_8B, (1, 8), flat=True)
    rows += time_target("27b", QWEN36_27B, (1, 8, 64), flat=False)
    about: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
    }
    result: dict[str, Any] = {"about": about, "tree": imported_tree(options.tree)}
    result |= {"weights": "generated", "rows": rows}
    result |= {"figures": figures(rows, about), "proofs": proofs}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))
    for figure in result["figures"]:
        print(
            figure["id"],
            figure["value"],
            "goal",
            figure["goal"],
            "met" if figure["met"] else "NOT met",
        )


if __name__ == "__main__":
    main()
