"""Proves the draft step on one GPU, then times it; writes a JSON file and prints a table.

Layers are random at Qwen3-8B-Domino's shapes, the head is generated (rollout_generator), bfloat16:
times say what a step costs, nothing about acceptance. A step is one graph replay: context KV of new
rows, block, base logits, exact rollout; "executor" is the same with indices and rows from the host
and the ids back.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu_draft_checks import network, replays
from benchmarks.gpu_draft_model import (
    PAGE,
    drafting,
    qwen3_8b_domino,
    random_draft,
    random_kv,
    random_rows,
    rollouts,
)
from benchmarks.gpu_verify_timing import capture, copy_tb_s, replay_us
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.rollout_generator import QWEN3_8B, generate
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.gpu_executor import GpuExecutor
from draft_service.gpu_step import Step, StepGraphs

COMMAND = "python -m benchmarks.gpu_draft --json FILE"
CONTEXT = 640  # the middle of a prompt of 512 and 256 new tokens
STEPS = ((1, 16), (8, 16), (32, 8), (1, 8), (8, 8), (32, 16))  # sessions, width
GOALS = {(1, 16): 1.35, (8, 16): 1.5, (32, 8): 2.4}
PAGES = 32 * (CONTEXT // PAGE + 1)


@torch.inference_mode()
def time_steps(proofs: list[str]) -> list[dict[str, Any]]:
    """One row a (sessions, width), mode 0 and certified."""
    config, head = qwen3_8b_domino(), generate(QWEN3_8B, device="cuda")
    model = random_draft(config, head.embedding)
    kv = random_kv(model, PAGES)
    rows: list[dict[str, Any]] = [{"sessions": c, "width": w, "context": CONTEXT} for c, w in STEPS]
    for mode in (0, "certified"):
        made = rollouts(head, mode, 32, 15)
        for row in rows:
            batch, count = row["sessions"], row["width"] - 1
            graphs = StepGraphs(model, made, kv, pages=4, batches=[batch], counts=[count])
            graphs.capture()
            if mode == 0:
                proofs.append(replays(graphs, batch, count, PAGES))
                print(proofs[-1], flush=True)
            step = graphs.step(spec.MODE_DOMINO, batch, count)
            parts = drafting(batch, count, CONTEXT, 5, PAGES)
            step.run(parts, random_rows(parts, config.hidden_size))
            assert step.graph is not None
            row[f"ms_{mode}"] = replay_us(step.graph) / 1000
            if mode == 0:
                row |= pieces_ms(step)
            print(json.dumps(row), flush=True)
        del made
        torch.cuda.empty_cache()
    return rows


def pieces_ms(step: Step) -> dict[str, float]:
    """Milliseconds of each part of a step by itself."""
    model, kv, bucket = step._model, step._kv, step.bucket
    hidden = model.forward(bucket.blocks, kv)
    work = {
        "append_ms": lambda: model.append(bucket.projected, bucket.appended, kv),
        "backbone_ms": lambda: model.forward(bucket.blocks, kv),
        "rollout_ms": lambda: step._rollout.run(hidden, bucket.current),
    }
    return {name: replay_us(capture(run)) / 1000 for name, run in work.items()}


def time_executor() -> list[dict[str, Any]]:
    """Milliseconds of GpuExecutor.run, which is what the engine waits for."""
    config, head = qwen3_8b_domino(), generate(QWEN3_8B, device="cuda")
    model = random_draft(config, head.embedding)
    executor = GpuExecutor(
        model, rollouts(head, 0, 32, config.max_draft_tokens), random_kv(model, PAGES),
        max_sessions=32,
    )  # fmt: skip
    found = []
    for (batch, width), _ in GOALS.items():
        parts = drafting(batch, width - 1, CONTEXT, 5, PAGES)
        rows, times = random_rows(parts, config.hidden_size), []
        for _ in range(60):
            began = time.perf_counter()
            executor.run(parts, rows, draft_pb2.DraftTimings())
            times.append(time.perf_counter() - began)
        ms = statistics.median(times[10:]) * 1000
        found.append({"sessions": batch, "width": width, "executor_ms": ms})
    return found


def figures(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The issue's figures with their goals."""
    found = []
    for row in result["steps"]:
        goal = GOALS.get((row["sessions"], row["width"]))
        if goal is not None:
            value = min(row["ms_0"], row["ms_certified"])
            figure = {"id": f"draft_step_ms_8b_c{row['sessions']}", "value": round(value, 4)}
            figure |= {"unit": "ms", "goal": goal, "met": value <= goal, "lower_is_better": True}
            found.append(figure | result["about"])
    return found


def table(result: dict[str, Any]) -> str:
    """Steps as a Markdown table, milliseconds."""
    names = ("append_ms", "backbone_ms", "rollout_ms", "ms_0", "ms_certified")
    titles = "| C | width | append | backbone | rollout | step | step, certified | executor |"
    lines = [titles, "|---" * 8 + "|"]
    hosts = {(row["sessions"], row["width"]): row["executor_ms"] for row in result["executor"]}
    for row in result["steps"]:
        cells = [f"{row[name]:.3f}" for name in names]
        host = hosts.get((row["sessions"], row["width"]))
        cells.append("" if host is None else f"{host:.3f}")
        lines.append(f"| {row['sessions']} | {row['width']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Proves, times, writes the JSON and prints the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    add_argument(parser)
    options = parser.parse_args()
    proofs = []
    for line in network():
        print(line, flush=True)
        proofs.append(line)
    about = {
        "hardware": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
    }
    weights = "layers random, head generated, Qwen3-8B-Domino shapes, bfloat16"
    result: dict[str, Any] = {"about": about, "tree": imported_tree(options.tree)}
    result |= {
        "weights": weights,
        "copy_tb_s": copy_tb_s(),
        "steps": time_steps(proofs),
        "proofs": proofs,
    }
    result["executor"] = time_executor()
    result["figures"] = figures(result)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    for figure in result["figures"]:
        met = "met" if figure["met"] else "NOT met"
        print(figure["id"], figure["value"], "goal", figure["goal"], met)


if __name__ == "__main__":
    main()
