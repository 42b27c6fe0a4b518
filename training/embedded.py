"""`python -m training.embedded`: the draft that ships, from the target's answers to a measured one.

The features of all answers stay in memory, a draft is trained for a given time, exported, and
measured by real greedy drafting on held-out prompts. Several GPUs, one process each as torchrun
starts them, share the datasets and the training.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from router.tokenizer import Tokenizer
from serving.device import open_device
from serving.tensors import DTYPES
from training.claim import claimed
from training.config import TrainConfig, load_config
from training.dataset import Document, read_dataset
from training.embedded_answers import encode
from training.opening import load_target, open_session
from training.ranks import Ranks, join, place
from training.session import Session
from training.speculate import (
    Answer,
    Speculation,
    acceptance_length,
    accepted_shares,
    loops,
)
from training.target import BatchTarget
from training.watch import METRICS

BEGAN = time.monotonic()
CALIBRATION_STEPS = 60


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    output = args.out / f"rank-{place().rank}" if place().rank else args.out
    config = load_config(args.config, [*args.overrides, f"output={output}"])
    device, dtype = open_device(config.device), DTYPES[config.dtype]
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # refuses masked queries of few rows
    ranks = dataclasses.replace(join(device), own_rows=True)
    target = load_target(config, dtype, device)
    say(f"target loaded: {torch.__version__}, {config.device}, rank {ranks.rank} of {ranks.count}")
    documents = shared_out(args.answers, ranks, args.max_tokens)
    with claimed(output, METRICS):
        config, session = timed_session(args, config, target, documents, ranks)
        session.run(say if ranks.rank == 0 else lambda _: None)
    if ranks.rank > 0 or not args.held_out:
        return 0
    say(f"exported to {session.export(args.out / 'export')}")
    result = {"config": _plain(config), "documents": len(documents)}
    result["acceptance"] = measure(args, config, target, args.out / "export")
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m training.embedded", description=__doc__)
    found.add_argument("config", type=Path, help="a training config")
    found.add_argument("overrides", nargs="*", metavar="key=value")
    found.add_argument("--held-out", type=Path, help='JSONL of {"workload", "text"} to measure on')
    found.add_argument("--out", type=Path, required=True, help="where the results go")
    found.add_argument("--answers", type=Path, required=True, help="of training.embedded_answers")
    found.add_argument("--deadline", type=float, default=500, metavar="S", help="of everything")
    found.add_argument("--reserve", type=float, default=45, metavar="S", help="for measuring")
    found.add_argument("--max-tokens", type=int, default=15_000_000, metavar="N", help="a process")
    return found


def shared_out(folder: Path, ranks: Ranks, most: int) -> list[Document]:
    """Every count-th dataset in `folder`, in random order, up to `most` tokens."""
    names = sorted(path for path in folder.iterdir() if path.is_dir())
    everything = [d for path in names[ranks.rank :: ranks.count] for d in read_dataset(path)]
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0)).tolist()
    ends = accumulate(len(everything[i].ids) for i in order)
    kept = [everything[i] for i, end in zip(order, ends, strict=True) if end <= most]
    say(f"{len(kept)} of {len(everything)} documents from {len(names)} datasets kept")
    return kept


def timed_session(
    args: argparse.Namespace,
    config: TrainConfig,
    target: BatchTarget,
    documents: list[Document],
    ranks: Ranks,
) -> tuple[TrainConfig, Session]:
    """A session of as many steps as the time allows, by the measured speed of the first ones."""
    session = open_session(config, say, target=target, documents=documents, ranks=ranks)
    for _ in range(3):
        session.trainer.train_step()
    began, timed = now(target), min(CALIBRATION_STEPS, config.steps)
    for _ in range(timed):
        session.trainer.train_step()
    each = (now(target) - began) / timed
    left = args.deadline - args.reserve - (time.monotonic() - BEGAN)
    steps = ranks.least(max(1, min(config.steps, int(left / each * 0.97))))
    say(f"{each * 1e3:.2f} ms a step, {left:.0f} s left: {steps} steps")
    config = dataclasses.replace(session.config, steps=steps)
    return config, session.again(config)


def now(target: BatchTarget) -> float:
    """Time once the device has done all it was given."""
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def measure(
    args: argparse.Namespace, config: TrainConfig, target: BatchTarget, draft: Path
) -> dict[str, Any]:
    """Acceptance by workload and mode at the full width, and of the head's draft at width 8."""
    tokenizer = Tokenizer.load(config.target)
    lines = [json.loads(line) for line in args.held_out.read_text().split("\n") if line]
    prompts = [encode(tokenizer, line["text"]) for line in lines]
    speculation, found = Speculation(target, draft), {}
    for name, width, base in (
        ("full", config.block_size, False),
        ("8", min(8, config.block_size), False),
        ("base", config.block_size, True),
    ):
        answers = speculation.answers(
            prompts, width=width, new=256, stops=set(target.config.eos_token_ids), base_only=base
        )
        found[name] = table(lines, answers, width)
        say(f"{name}: " + json.dumps({k: v["acceptance_length"] for k, v in found[name].items()}))
    return found


def table(
    lines: Sequence[dict[str, str]], answers: Sequence[Answer], width: int
) -> dict[str, dict[str, Any]]:
    """Figures of each workload, and with those answers left out that repeat themselves."""
    found: dict[str, dict[str, Any]] = {}
    for workload in dict.fromkeys(line["workload"] for line in lines):
        some = [a for line, a in zip(lines, answers, strict=True) if line["workload"] == workload]
        plain = [a for a in some if not loops(a)]
        found[workload] = {
            "prompts": len(some),
            "step_tokens": sum(a.step_tokens for a in some),
            "verify_steps": sum(len(a.accepted) for a in some),
            "acceptance_length": round(acceptance_length(some), 4),
            "not_looping_prompts": len(plain),
            "not_looping_acceptance_length": round(acceptance_length(plain), 4),
            "accepted_shares": [round(s, 4) for s in accepted_shares(some, width - 1)],
        }
    return found


def _plain(config: TrainConfig) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(config).items()
    }


if __name__ == "__main__":
    sys.exit(main())
