"""`python -m benchmarks.training_mfu`: how much of a GPU's arithmetic a training step uses.

Random weights at Qwen3-8B's sizes: 5 draft layers with a Domino head, blocks of 16, 256 of them in
each row of 3,072 tokens, bfloat16. FlexAttention is compared with the dense oracle first. A step is
the trainer's own, weight update included: once with features in memory (the figure), once with the
target's forward for every batch (beside it). Times say nothing about what is learnt.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.gpu_draft_model import qwen3_8b_domino
from benchmarks.gpu_verify_model import TAPS, RandomWeights, qwen3_8b
from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.provenance import Origin
from benchmarks.training_flops import Work, draft_flops, target_flops, total
from benchmarks.training_mfu_checks import check_flex
from serving.checkpoint import Checkpoint
from serving.device import open_device
from serving.draft_config import DraftConfig
from serving.draft_tensors import draft_tensors
from training.config import TrainConfig
from training.dataset import Document, PackedRows, pack
from training.features import Features
from training.opening import make_objective
from training.ranks import Ranks, join, own_device
from training.target import BatchTarget
from training.trainer import Trainer

PEAK = 989.4e12  # bfloat16 operations a second of an H100 or H200, dense
GOAL = 0.45
LENGTH, ANCHORS, KEPT_ROWS = 3072, 256, 16
COMMAND = "python -m benchmarks.training_mfu --json FILE"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_mfu", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--rows", type=int, default=2, help="rows of a micro-batch")
    parser.add_argument("--accumulation", type=int, default=8, help="micro-batches of a step")
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--parallel", choices=("replicated", "fsdp"), default="replicated")
    add_argument(parser)
    args = parser.parse_args(argv)
    origin, device = Origin.at_start(COMMAND), open_device(own_device("cuda"))
    ranks = join(device)
    for line in check_flex(device):
        say(ranks, line)
    weights = RandomWeights(torch.bfloat16)
    target = BatchTarget.read(
        qwen3_8b(),
        cast(Checkpoint, weights),
        taps=TAPS,
        dtype=torch.bfloat16,
        device=device,
    )
    config = replace(settings(args.rows, args.accumulation), parallel=args.parallel)
    packed = documents(target.config.vocab_size - 1000)
    result: dict[str, Any] = {"rows": args.rows, "accumulation": args.accumulation}
    result |= {"ranks": ranks.count, "parallel": args.parallel}
    for name, keep in (("features in memory", True), ("with the target", False)):
        result[name] = timed(config, target, packed, keep, args.steps, ranks)
        say(ranks, f"{name} {json.dumps(result[name])}")
    if args.json and ranks.rank == 0:
        found = {
            "benchmark": "training_mfu",
            "hardware": f"{ranks.count} x {torch.cuda.get_device_name()}",
            **origin.at_end(),
        }
        found |= {"tree": imported_tree(args.tree), "result": result}
        found["figures"] = [figure(found)]
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def say(ranks: Ranks, text: str) -> None:
    if ranks.rank == 0:
        print(text, flush=True)


def settings(rows: int, accumulation: int) -> TrainConfig:
    """A recipe's sizes; AdamW, one hard label a slot."""
    return TrainConfig(
        target=Path("random"),
        data=Path("random"),
        output=Path("unused"),
        mask_token_id=151669,
        layers=5,
        row_length=LENGTH,
        rows=rows,
        anchors=ANCHORS,
        accumulation=accumulation,
        steps=1000,
        features="memory",
        device="cuda",
        dtype="bfloat16",
    )


def documents(ids: int) -> PackedRows:
    """One random document a row, the first tenth of it unsupervised."""
    rng = torch.Generator().manual_seed(0)
    made = []
    for _ in range(KEPT_ROWS):
        drawn = torch.randint(ids, (LENGTH,), generator=rng, dtype=torch.int32)
        made.append(Document(drawn, torch.arange(LENGTH) >= LENGTH // 10))
    return pack(made, LENGTH, 0)


def random_masters(draft: DraftConfig) -> dict[str, torch.Tensor]:
    """float32, on the GPU."""
    weights = RandomWeights(torch.float32)
    shapes = draft_tensors(draft)
    return {name: weights.tensor(name, shape, torch.float32) for name, shape in shapes.items()}


def timed(
    config: TrainConfig,
    target: BatchTarget,
    packed: PackedRows,
    keep: bool,
    steps: int,
    ranks: Ranks,
) -> dict[str, float]:
    """Milliseconds of an optimizer step, its operations and their share of the peak, by GPU."""
    torch.cuda.reset_peak_memory_stats()
    draft = qwen3_8b_domino()
    features = Features(target, packed, taps=config.taps, keep=keep, last=False)
    objective = make_objective(config, draft, target)
    masters = random_masters(draft)
    trainer = Trainer(config, objective, features, masters, torch.bfloat16, ranks)
    began = time.monotonic()
    for _ in range(2):  # compiles, then captures
        trainer.train_step()
    torch.cuda.synchronize()
    prepared, began = time.monotonic() - began, time.monotonic()
    for _ in range(steps):
        trainer.train_step()
    torch.cuda.synchronize()
    seconds = (time.monotonic() - began) / steps
    work = last_work(trainer)
    parts, micros = draft_flops(draft, work), config.accumulation
    found = {
        "ms": seconds * 1e3,
        "prepared_s": prepared,
        "draft_tflop": total(parts) * micros / 1e12,
    }
    found |= {
        "rows_per_s": config.rows * micros / seconds,
        "mfu": share(total(parts), micros, seconds),
    }
    if not keep:
        whole = total(parts) + target_flops(target.config, work)
        found |= {"tflop": whole * micros / 1e12, "mfu_of_both": share(whole, micros, seconds)}
    found |= {f"share_{part}": value / total(parts) for part, value in parts.items()}
    found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    found["finite"] = float(trainer.is_finite)
    return {name: round(value, 4) for name, value in found.items()}


def share(flops: int, micros: int, seconds: float) -> float:
    return flops * micros / seconds / PEAK


def last_work(trainer: Trainer) -> Work:
    """Of the trainer's last micro-batch."""
    config, anchors = trainer.config, trainer.anchors()
    seen = anchors.columns * anchors.live + config.block_size  # every row is one document
    slots = anchors.columns.numel() * config.block_size
    pairs = int(seen.sum()) * config.block_size
    return Work(rows=config.rows, tokens=config.row_length, slots=slots, pairs=pairs)


def figure(result: dict[str, Any]) -> dict[str, Any]:
    """For benchmarks/summary.json."""
    found = result["result"]
    both = found["with the target"]["mfu_of_both"]
    return {
        "id": "train_mfu_qwen3_8b",
        "value": found["features in memory"]["mfu"],
        "unit": "of 989 TFLOP/s; draft forward and backward with its chunked head, the weight "
        "update in the time (random weights, 5 layers, 256 anchors, length 3072; with the "
        f"target's forward in both {both:.3f})",
        "goal": GOAL,
        "lower_is_better": False,
        **{key: result[key] for key in ("hardware", "date", "versions", "command")},
    }


if __name__ == "__main__":
    sys.exit(main())
