"""Tensor parallelism on the GPUs of one host: proves a part of the layers, then times whole steps.

`torchrun --nproc-per-node 2 -m benchmarks.gpu_verify_tp --json FILE`. Random weights of Qwen3-32B's
shapes, bfloat16; a step is one graph replay on every rank, collectives included. The floor is a
rank's bytes of weights over the bandwidth of a copy in the same run.
"""

import argparse
import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
from torch import Tensor

from benchmarks.gpu_verify_checks import expect, relative
from benchmarks.gpu_verify_model import (
    PAGE,
    TAPS,
    decoding,
    qwen3_8b,
    qwen3_32b,
    random_kv,
    random_target,
    step_graphs,
)
from benchmarks.gpu_verify_times import CONTEXT, cublas_ms
from benchmarks.gpu_verify_timing import copy_tb_s, replay_us
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from domino_kernels.gpu.norm import add_rms_norm
from domino_kernels.paged_kv import PagedKV
from verify_service.gpu_exchange import Exchange
from verify_service.gpu_rows import Rows, ragged_rows
from verify_service.gpu_target import GpuTarget
from verify_service.ranks import ALONE, Ranks, join

STEPS = ((1, 1), (8, 1), (1, 16), (8, 16))
GOALS = {"gpu_tp2_verify16_over_floor_c1": (1, 16), "gpu_tp2_verify16_over_floor_c8": (8, 16)}
GOAL = 1.45
PAGES = 64


@torch.inference_mode()
def prove(ranks: Ranks) -> list[str]:
    """Logits and choices of three layers on all ranks against one GPU; an odd vocabulary."""
    lines = []
    for dtype, most in ((torch.float32, 2e-5), (torch.bfloat16, 3e-2)):
        config = qwen3_8b(layers=3, vocab=8191)
        work = decoding(3, 60, 0, PAGES, 8191)
        found, chosen = [], []
        for group in (ranks, ALONE):
            target = random_target(config, dtype, ranks=group)
            kv = target.new_kv(PAGES, PAGE)
            rows = ragged_rows(work, PAGE, target.plan, target.device)
            logits = target.logits(target.forward(rows, kv, None))
            if group is ranks:
                lines += _same_by_nccl(target, kv, rows, logits)
            found.append(target.vocabulary.whole(logits))
            chosen.append(target.vocabulary.best(logits)[0])
            step = step_graphs(target, kv, 4, 16, None)
            steps = [type(w)(sequence=w.sequence, ids=w.ids[:16], choices=16) for w in work]
            graph = torch.tensor([row[2:] for row in step.launch(steps)[0]()])[:3]
            chosen.append(graph.flatten())
        lines.append(expect(f"{ranks.size} ranks, logits, {dtype}", relative(*found), most))
        if dtype == torch.float32:
            same = torch.equal(chosen[0], chosen[2]) and torch.equal(chosen[1], chosen[3])
            lines.append(expect(f"{ranks.size} ranks, choices", 0.0 if same else 1.0, 0.0))
    return lines


def _same_by_nccl(target: GpuTarget, kv: PagedKV, rows: Rows, logits: Tensor) -> list[str]:
    """Whether the sums give the same bits through NCCL."""
    exchange = target._exchange
    most, exchange._most = exchange._most, 0
    same = torch.equal(target.logits(target.forward(rows, kv, None)), logits)
    exchange._most = most
    return [expect(f"sums in the norm (room for {most} rows) and by NCCL", float(not same), 0.0)]


def bytes_read(ranks: Ranks) -> int:
    """Weights of one rank, the head included, the embedding's few rows not."""
    c = qwen3_32b()
    attention = (2 * c.num_heads + 2 * c.num_kv_heads) * c.head_dim * c.hidden_size
    mlp = 3 * c.intermediate_size * c.hidden_size
    return 2 * (c.num_layers * (attention + mlp) + c.vocab_size * c.hidden_size) // ranks.size


@torch.inference_mode()
def time_steps(ranks: Ranks, floor_ms: float) -> list[dict[str, Any]]:
    """One row a (batch, width); rank 0 projects five taps as well from width 2 on."""
    target = random_target(qwen3_32b(), torch.bfloat16, () if ranks.rank else TAPS, ranks=ranks)
    kv = random_kv(target, PAGES)
    table = None if ranks.rank else kv.k.new_zeros(PAGES * PAGE, 5120)
    found = []
    for batch, width in STEPS:
        step = step_graphs(target, kv, batch, width, None if width == 1 else table)
        one = step.step(batch, width)
        one.bucket.fill(decoding(batch, width, CONTEXT, PAGES, 151936))
        dist.barrier()
        ms = replay_us(one.graph) / 1000
        row = {"batch": batch, "width": width, "ms": ms, "over_floor": ms / floor_ms}
        found.append(row | {"own_cublas_ms": cublas_ms(target, batch * width)})
        if not ranks.rank:
            print(found[-1], flush=True)
    return found


def exchanges(ranks: Ranks) -> list[dict[str, Any]]:
    """Microseconds of a sum over ranks and the norm behind it in a graph, by several means."""
    hidden, device = 5120, torch.device("cuda", torch.cuda.current_device())
    exchange = Exchange(ranks, hidden, torch.bfloat16, device)
    weight = torch.ones(hidden, device="cuda").bfloat16()
    found = []
    for rows in (1, 16, 128):
        x = torch.randn(rows, hidden, device="cuda").bfloat16()
        stream = x.clone()

        def gathered(x: Tensor = x, stream: Tensor = stream) -> None:
            add_rms_norm(stream, ranks.stacked(x), weight, 1e-6, early=False)

        def reduced(x: Tensor = x, stream: Tensor = stream) -> None:
            dist.all_reduce(x)
            add_rms_norm(stream, x[None], weight, 1e-6, early=False)

        def fused(stream: Tensor = stream) -> None:
            room = exchange.room(len(stream))
            assert room is not None, "few rows"
            exchange.add_norm(stream, room[None], weight, 1e-6)

        ways: dict[str, Callable[[], None]] = {
            "all_gather_norm": gathered,
            "all_reduce_norm": reduced,
            "exchange_norm": fused,
        }
        row: dict[str, Any] = {"rows": rows}
        for name, once in ways.items():
            row[name] = _repeated_us(once)
        found.append(row)
        if not ranks.rank:
            print(row, flush=True)
    return found


def _repeated_us(once: Callable[[], object], count: int = 50) -> float:
    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            once()
    dist.barrier()
    return replay_us(graph, replays=3) / count


def figures(result: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    """The issue's figures, two ranks only."""
    steps = {(row["batch"], row["width"]): row["over_floor"] for row in result["steps"]}
    return [
        {"id": name, "value": round(steps[case], 4), "unit": "ratio", "goal": GOAL}
        | {"met": steps[case] <= GOAL, "lower_is_better": True}
        | about
        for name, case in GOALS.items()
        if result["ranks"] == 2
    ]


def main() -> None:
    """Proves, times; rank 0 writes the JSON and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    add_argument(parser)
    options = parser.parse_args()
    ranks = join(torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))))
    proofs = prove(ranks)
    for line in proofs if not ranks.rank else ():
        print(line, flush=True)
    copy = copy_tb_s()
    floor_ms = bytes_read(ranks) / copy / 1e9
    about = {
        "hardware": f"{ranks.size} x {torch.cuda.get_device_name()}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "command": "torchrun --nproc-per-node 2 -m benchmarks.gpu_verify_tp --json FILE",
    }
    result: dict[str, Any] = {
        "about": about,
        "tree": imported_tree(options.tree),
        "ranks": ranks.size,
    }
    result |= {"weights": "random, Qwen3-32B shapes, bfloat16", "proofs": proofs}
    result |= {"copy_tb_s": copy, "floor_ms": floor_ms}
    result["steps"] = time_steps(ranks, floor_ms)
    result["figures"] = figures(result, about)
    if not ranks.rank:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        print(f"copy {copy:.2f} TB/s, floor {floor_ms:.2f} ms", result["figures"])
    result["exchanges"] = exchanges(ranks)
    if not ranks.rank:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
