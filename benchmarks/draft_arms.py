"""`python -m benchmarks.draft_arms`: drafts with different heads, trained alike and measured.

The same answers of the target, the same steps (and then the same time), some seeds each; every
draft is exported and run by real greedy drafting on held-out prompts. Two processes with --share
0/2 and 1/2 and an OUT each halve the work. Lines go to OUT/arms.jsonl, drafts to OUT/<arm>.
Next: benchmarks.draft_arms_steps on these, then benchmarks.draft_arms_report.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_verify_tree import add_argument, imported_tree
from benchmarks.provenance import Origin, hardware
from router.tokenizer import Tokenizer
from serving.device import open_device
from serving.tensors import DTYPES
from training.config import TrainConfig, load_config
from training.dataset import pack
from training.draft_json import draft_json, rope_fields
from training.embedded import now, shared_out, table
from training.embedded_answers import encode
from training.export import export, parse_draft
from training.features import Features
from training.mask import with_mask
from training.opening import load_target, make_objective
from training.ranks import ONE_RANK
from training.speculate import Speculation
from training.start import first_weights
from training.target import BatchTarget
from training.trainer import Trainer

BEGAN = time.monotonic()
NAME = "benchmarks.draft_arms"
HEADS = ("dflash", "domino", "dspark")
WARM = 20  # steps that compile and capture; not timed


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    origin = Origin.at_start(shlex.join(["python", "-m", NAME, *(argv or sys.argv[1:])]))
    config = load_config(args.config, [*args.overrides, f"output={args.out}"])
    args.out.mkdir(parents=True, exist_ok=True)
    device = open_device(config.device)
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # refuses masked queries of few rows
    target = load_target(config, DTYPES[config.dtype], device)
    documents = shared_out(args.answers, ONE_RANK, args.max_tokens)
    packed = pack(documents, config.row_length, config.seed)
    mask = with_mask(config, packed.ids, target.config.vocab_size, ONE_RANK, device).mask_token_id
    args.overrides.append(f"mask_token_id={mask}")
    features = Features(target, packed, taps=config.taps, keep=True, last=True)
    say(f"{len(packed)} rows, features {features.size.bytes / 1e9:.1f} GB")
    arms = Arms(args, config, target, features)
    share, count = (int(n) for n in args.share.split("/"))
    wanted = args.arm or [[head, f"head={head}"] for head in HEADS]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    pairs = list(product(seeds, wanted))[share::count]
    ms = {}
    about = {"rows": len(packed), "documents": len(documents)}
    about |= {"tokens_a_step": config.rows * config.row_length * config.accumulation}
    for seed, (name, *changes) in pairs:
        if not arms.is_late:
            ms[name] = arms.run(name, changes, seed, args.steps, "steps")
            tell_origin(args, origin, about)
    for seed, (name, *changes) in pairs if args.equal_time in ms else ():
        steps = round(args.steps * ms[args.equal_time] / ms[name]) if name in ms else args.steps
        if abs(steps / args.steps - 1) > 0.03 and not arms.is_late:
            arms.run(name, changes, seed, steps, "time")
            tell_origin(args, origin, about)
    return 0


def device_name() -> str:
    """Of the one device of this process."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else hardware("cpu")
    return f"1 x {name}"


def tell_origin(args: argparse.Namespace, origin: Origin, about: dict[str, Any]) -> None:
    """Writes OUT/about.json anew: of the lines so far."""
    found = {"hardware": device_name(), **origin.at_end(), **about}
    found["tree"] = imported_tree(args.tree)
    (args.out / "about.json").write_text(json.dumps(found, indent=1) + "\n")


class Arms:
    """What all runs have in common."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: TrainConfig,
        target: BatchTarget,
        features: Features,
    ) -> None:
        self._args, self._config, self._target, self._features = args, config, target, features
        tokenizer = Tokenizer.load(config.target)
        lines = [json.loads(line) for line in args.held_out.read_text().split("\n") if line]
        self._lines = lines[:: args.every]
        self._prompts = [encode(tokenizer, line["text"]) for line in self._lines]

    @property
    def is_late(self) -> bool:
        """Whether no further run fits."""
        return time.monotonic() - BEGAN > float(self._args.deadline)

    def run(self, name: str, changes: Sequence[str], seed: int, steps: int, equal: str) -> float:
        """Trains, measures and writes one line; returns milliseconds of a step."""
        args = self._args
        fixed = [f"steps={steps}", f"output={args.out / name}", f"seed={seed}"]
        config = load_config(args.config, [*args.overrides, *fixed, *changes])
        if config.steps != steps:
            steps, equal = config.steps, "own steps"
        made = draft_json(config, self._target.config, rope_fields(self._target.checkpoint))
        draft = parse_draft(None, made, self._target.config)
        start = first_weights(config, draft, self._target)
        objective = make_objective(config, draft, self._target)
        trainer = Trainer(config, objective, self._features, start, DTYPES[config.dtype])
        curve: list[dict[str, float]] = []
        ms = self._train(trainer, steps, curve)
        line: dict[str, Any] = {"arm": name, "seed": seed, "equal": equal, "steps": steps}
        line |= {"ms_a_step": round(ms, 3), "changes": list(changes)}
        line |= {"parameters": sum(w.numel() for w in trainer.masters.values())}
        line["curve"] = [{k: round(v, 5) for k, v in point.items()} for point in curve]
        folder = args.out / name
        export(folder, made, trainer.masters, self._target.config)
        line |= self._measured(folder, config.block_size, seed)
        with (args.out / "arms.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        lengths = {k: v["acceptance_length"] for k, v in line["acceptance"].items()}
        say(f"{name} {equal} seed {seed}: {steps} steps of {ms:.2f} ms, {json.dumps(lengths)}")
        return ms

    def _train(self, trainer: Trainer, steps: int, curve: list[dict[str, float]]) -> float:
        """To the end; milliseconds of a step behind those that compile and capture."""
        warm = min(WARM, steps // 2)
        for _ in range(warm):
            trainer.train_step()
        began = now(self._target)
        for _ in range(steps - warm):
            trainer.train_step()
            if trainer.step % 500 == 0:
                curve.append(trainer.metrics())
        return (now(self._target) - began) / (steps - warm) * 1e3

    def _measured(self, folder: Path, width: int, seed: int) -> dict[str, Any]:
        """Acceptance by workload and position; of seed 0 the base branch's too."""
        speculation = Speculation(self._target, folder)
        found: dict[str, Any] = {}
        for name, base in (("acceptance", False), ("base", True)):
            if base and (seed > 0 or not speculation.has_head):
                continue
            answers = speculation.answers(
                self._prompts,
                width=width,
                new=self._args.new_tokens,
                stops=set(self._target.config.eos_token_ids),
                base_only=base,
            )
            found[name] = table(self._lines, answers, width)
        return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog=f"python -m {NAME}", description=__doc__)
    found.add_argument("config", type=Path, help="a training config")
    found.add_argument("overrides", nargs="*", metavar="key=value")
    found.add_argument(
        "--arm", nargs="+", action="append", help="a draft: NAME key=value ..., steps= too"
    )
    found.add_argument("--answers", type=Path, required=True, help="of training.embedded_answers")
    found.add_argument("--held-out", type=Path, required=True, help='JSONL: {"workload", "text"}')
    found.add_argument("--out", type=Path, required=True, help="where the results go")
    found.add_argument("--seeds", type=int, default=3, metavar="N")
    found.add_argument("--first-seed", type=int, default=0, metavar="N")
    found.add_argument("--steps", type=int, default=2130, metavar="N")
    found.add_argument("--equal-time", default="domino", metavar="ARM", help="whose time all get")
    found.add_argument("--share", default="0/1", metavar="I/N", help="this process's runs")
    found.add_argument("--deadline", type=float, default=1e9, metavar="S", help="no run after it")
    found.add_argument("--max-tokens", type=int, default=15_000_000, metavar="N", help="of text")
    found.add_argument("--new-tokens", type=int, default=256, metavar="N", help="of an answer")
    found.add_argument("--every", type=int, default=1, metavar="N", help="of the held-out prompts")
    add_argument(found)
    return found


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
