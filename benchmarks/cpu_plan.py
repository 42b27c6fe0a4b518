"""What a CPU run measures: prompts, tokens and widths of each dtype, from the command line."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.sample import Prompt
from benchmarks.workloads import load
from domino_cli.argument_types import positive
from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET
from domino_cli.stack_config import IN_PROCESS

WORKLOADS = ("gsm8k", "humaneval", "mt-bench")
DTYPES = ("float32", "bfloat16")
PROMPTS, MAX_TOKENS = 16, 128
BFLOAT16_PROMPTS, BFLOAT16_TOKENS = 3, 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """prompts, sweep_prompts: of each workload. The sweep chooses among `widths`; without any the
    services' width policy is auto, and it learns from the sweep's prompts."""

    dtype: str
    prompts: int
    max_tokens: int
    widths: tuple[int, ...]
    sweep_prompts: int
    sweep_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The first `count` of each workload are timed; those after them choose the widths."""

    texts: Mapping[str, Sequence[str]]
    count: int

    def timed(self, number: int) -> list[Prompt]:
        """The first `number` of each workload, the workloads in turn."""
        return self._range(0, number)

    def held_out(self, number: int) -> list[Prompt]:
        return self._range(self.count, self.count + number)

    def _range(self, start: int, stop: int) -> list[Prompt]:
        return [
            Prompt(workload=name, index=index, text=texts[index])
            for index in range(start, stop)
            for name, texts in self.texts.items()
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="a few minutes to see it work; no figures are kept"
    )
    parser.add_argument(
        "--prompts", type=positive, metavar="N", help=f"of each workload (default: {PROMPTS})"
    )
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", help=f"new tokens (default: {MAX_TOKENS})"
    )
    parser.add_argument(
        "--widths",
        type=widths,
        metavar="N,N",
        help="fixed ones to choose from (default: the services' width policy auto)",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="this one only (default: both)")
    parser.add_argument("--threads", type=positive, metavar="N", help="of every arm's model")
    parser.add_argument(
        "--data-plane",
        choices=(IN_PROCESS, "auto"),
        default=IN_PROCESS,
        help="auto: verify and draft are two processes (default: %(default)s, both in one)",
    )
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="MODEL", help="%(default)s")
    parser.add_argument("--draft", default=DEFAULT_DRAFT, metavar="MODEL", help="%(default)s")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="where all measurements go")


def plans(args: argparse.Namespace) -> list[Plan]:
    """One plan per dtype, float32 first: figures come from that one, bfloat16 is a shorter look."""
    prompts, max_tokens = (1, 32) if args.quick else (PROMPTS, MAX_TOKENS)
    float32 = Plan(
        dtype="float32",
        prompts=args.prompts or prompts,
        max_tokens=args.max_tokens or max_tokens,
        widths=args.widths or (),
        sweep_prompts=1,
        sweep_tokens=16 if args.quick else 48,
    )
    bfloat16 = replace(
        float32,
        dtype="bfloat16",
        prompts=min(float32.prompts, BFLOAT16_PROMPTS),
        max_tokens=min(float32.max_tokens, BFLOAT16_TOKENS),
        sweep_tokens=16,
    )
    return [plan for plan in (float32, bfloat16) if args.dtype in (None, plan.dtype)]


def is_full(args: argparse.Namespace) -> bool:
    """Whether the run is the one whose figures are kept."""
    wanted = {
        "prompts": (None, PROMPTS),
        "max_tokens": (None, MAX_TOKENS),
        "widths": (None,),
        "dtype": (None, "float32"),
        "target": (DEFAULT_TARGET,),
        "draft": (DEFAULT_DRAFT,),
        "quick": (False,),
    }
    return all(getattr(args, name) in values for name, values in wanted.items())


def load_prompts(measured: Sequence[Plan]) -> Prompts:
    """Of every workload, what the longest plan times and what its sweep needs after that."""
    count = max(plan.prompts for plan in measured)
    more = max(plan.sweep_prompts for plan in measured)
    return Prompts(texts={name: load(name, count + more) for name in WORKLOADS}, count=count)


def new_file(text: str) -> Path:
    """argparse type: a file that can be written; found out before the run, not after."""
    file = Path(text)
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return file


def widths(text: str) -> tuple[int, ...]:
    """argparse type: comma-separated widths of at least 2."""
    found = tuple(positive(part) for part in text.split(","))
    if min(found) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: width 1 is plain decoding, measured anyway")
    return found
