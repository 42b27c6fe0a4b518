"""Proves the verify step on one GPU, then times it; writes a JSON file and prints a table.

Weights are random at Qwen3-8B's shapes, bfloat16: times say what a step costs, nothing about
answers. A step is one graph replay: embedding, layers, head, acceptance and, from width 2 on, the
projection of five taps. "cublas" is the same rows through all linear layers and the head by cuBLAS,
measured in the same run.
"""

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu_verify_attention import attention_rows
from benchmarks.gpu_verify_checks import prove
from benchmarks.gpu_verify_prompts import time_long
from benchmarks.gpu_verify_sampling import time_sampling
from benchmarks.gpu_verify_times import CONTEXT, LONG, time_engine, time_steps
from benchmarks.gpu_verify_timing import copy_tb_s
from benchmarks.gpu_verify_tree import add_argument, imported_tree

COMMAND = "python -m benchmarks.gpu_verify --json FILE"
STEP_GOALS = {
    "gpu_ar_step_over_cublas_c1": (1, 1, 1.09),
    "gpu_ar_step_over_cublas_c8": (8, 1, 1.13),
    "gpu_ar_step_over_cublas_c32": (32, 1, 1.26),
    "gpu_verify_over_cublas_c1_w16": (1, 16, 1.16),
    "gpu_verify_over_cublas_c8_w16": (8, 16, 1.21),
    "gpu_verify_over_cublas_c32_w8": (32, 8, 1.26),
}
# tokens/s of vLLM 0.26.0's plain decoding, measured where a copy moved 4.30 TB/s
VLLM = {1: 193.6, 8: 1444.9, 32: 5283.0}
VLLM_COPY_TB_S = 4.30


def figures(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The issue's figures with their goals."""
    found: list[dict[str, Any]] = []

    def add(name: str, value: float, goal: float, *, lower: bool) -> None:
        met = value <= goal if lower else value >= goal
        entry = {"id": name, "value": round(value, 4), "unit": "ratio", "goal": goal, "met": met}
        found.append(entry | {"lower_is_better": lower} | result["about"])

    steps = {(row["batch"], row["width"]): row for row in result["steps"]}
    for name, (batch, width, goal) in STEP_GOALS.items():
        add(name, steps[batch, width]["over_cublas"], goal, lower=True)
    for row in result["engine"]:
        clients = row["clients"]
        ours, theirs = row["tok_s"] / result["copy_tb_s"], VLLM[clients] / VLLM_COPY_TB_S
        add(f"gpu_ar_over_vllm_c{clients}", ours / theirs, 1.05, lower=False)
    shares = {
        (row["batch"], row["width"]): row["tb_s"] / result["copy_tb_s"]
        for row in result["attention"]
        if row["heads"] == "32/8 x 128" and row["context"] == LONG
    }
    add("gpu_attn_bandwidth_share_c8", shares[8, 16], 0.75, lower=False)
    add("gpu_attn_bandwidth_share_c32", shares[32, 16], 0.90, lower=False)
    worst = max(row["over_fa3"] for row in result["attention"])
    add("gpu_attn_over_fa3_worst", worst, 1.15, lower=True)
    return found


def table(result: dict[str, Any]) -> str:
    """Steps and attention as Markdown tables."""
    lines = [f"| C | width | cublas ms | step ms ({CONTEXT}) | over cublas | step ms ({LONG}) |"]
    lines.append("|---" * 6 + "|")
    for row in result["steps"]:
        cells = [row["batch"], row["width"], f"{row['cublas_ms']:.3f}"]
        cells += [f"{row[f'ms_{CONTEXT}']:.3f}", f"{row['over_cublas']:.3f}"]
        lines.append("| " + " | ".join(map(str, [*cells, f"{row[f'ms_{LONG}']:.3f}"])) + " |")
    lines += ["", "| heads | C | width | context | us | over FA3 | TB/s |", "|---" * 7 + "|"]
    for row in result["attention"]:
        cells = [row["heads"], row["batch"], row["width"], row["context"], f"{row['us']:.1f}"]
        cells += [f"{row['over_fa3']:.2f}", f"{row['tb_s']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", long_table(result["long"])])


def long_table(long: dict[str, Any]) -> str:
    """Prompts, and steps at growing contexts, as Markdown tables."""
    lines = ["| prompt | chunk | tokens/s | MFU | of cuBLAS |", "|---" * 5 + "|"]
    for row in long["prompts"]:
        cells = [row["tokens"], row["chunk"], f"{row['tok_s']:.0f}"]
        cells += [f"{row['mfu']:.2f}", f"{row['of_cublas']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| C | width | context | step ms | grown ms | by bytes |", "|---" * 6 + "|"]
    for row in long["contexts"]:
        cells = [row["batch"], row["width"], row["context"]]
        cells += [f"{row[name]:.2f}" for name in ("ms", "grown_ms", "keys_ms")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Proves, times, writes the JSON and prints the tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--skip-checks", action="store_true")
    add_argument(parser)
    options = parser.parse_args()
    proofs = [] if options.skip_checks else prove()
    about = {
        "hardware": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": COMMAND,
    }
    result: dict[str, Any] = {
        "about": about,
        "tree": imported_tree(options.tree),
        "weights": "random, Qwen3-8B shapes, bfloat16",
    }
    result |= {"copy_tb_s": copy_tb_s(), "attention": attention_rows()}
    result |= {"steps": time_steps(), "engine": time_engine(), "proofs": proofs}
    result |= {"sampling": time_sampling(), "long": time_long(result["copy_tb_s"])}
    result["figures"] = figures(result)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    print(f"copy {result['copy_tb_s']:.2f} TB/s")
    for figure in result["figures"]:
        met = "met" if figure["met"] else "NOT met"
        print(figure["id"], figure["value"], "goal", figure["goal"], met)


if __name__ == "__main__":
    main()
