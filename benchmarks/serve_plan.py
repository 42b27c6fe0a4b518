"""What `bench serve` compares: arms, loads and prompts, from the command line and its presets."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cpu_plan import new_file
from benchmarks.serve_arm import Arm, arms
from benchmarks.serve_published import PUBLISHED
from domino_cli.argument_types import positive
from domino_cli.stack_arguments import add_stack_arguments
from loadtest.arguments import add_prompt_arguments, counts, folder, names, rate
from loadtest.plan import Plan
from loadtest.prompts import LoadPrompt
from serving.options import Parser

TABLES_ARMS = "ar,dflash@8,dflash@16,domino@8,domino@16"
# What a preset changes; flags given beside it win.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {
        "arms": "ar,dflash@4,domino@8,domino@auto",
        "concurrency": "1,8",
        "workload": "gsm8k,humaneval,mt-bench",
        "num_prompts": 8,
        "max_tokens": 96,
        "warm_ups": 2,
        "repeats": 1,
    },
    "tables": {
        "arms": TABLES_ARMS,
        "concurrency": "1,8,32",
        "workload": "gsm8k,math500,humaneval,mt-bench",
        "num_prompts": 128,
        "max_tokens": 4096,
        "warm_ups": 8,
        "repeats": 3,
    },
    "serving": {
        "arms": "ar,domino@16",
        "concurrency": "32",
        "num_prompts": 128,
        "max_prompt_tokens": 1024,
        "max_tokens": 512,
        "warm_ups": 32,
        "repeats": 3,
    },
}
PRESETS["synthetic"] = {
    **PRESETS["tables"],
    "workload": "random",
    "synthetic_acceptance": PUBLISHED,
    "num_prompts": 64,
    "max_tokens": 256,
}
DEFAULTS: dict[str, Any] = {
    "arms": TABLES_ARMS,
    "concurrency": "1,8,32",
    "num_prompts": 32,
    "max_tokens": 256,
    "warm_ups": 8,
    "repeats": 3,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A point of the load axis: so many in flight, or so many requests a second."""

    concurrency: int = 1
    request_rate: float | None = None

    @property
    def label(self) -> str:
        return f"C{self.concurrency}" if self.request_rate is None else f"{self.request_rate:g}/s"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServePlan:
    """Every arm on fresh servers, `repeats` times, at every load, on every workload.

    synthetic: acceptance that drafting arms pretend, or PUBLISHED for the published lengths.
    """

    arms: tuple[Arm, ...]
    loads: tuple[Load, ...]
    prompts: dict[str, list[LoadPrompt]]
    repeats: int
    base: Plan
    synthetic: str | None = None

    def load_plan(self, arm: Arm, load: Load, workload: str, address: str) -> Plan:
        """One load test of the whole."""
        return replace(
            self.base,
            address=address,
            prompts=tuple(self.prompts[workload]),
            concurrency=load.concurrency,
            request_rate=load.request_rate,
            mode=arm.mode,
            warm_ups=max(self.base.warm_ups, load.concurrency) if self.base.warm_ups else 0,
        )


def parser(about: str | None) -> argparse.ArgumentParser:
    found = Parser(
        prog="domino-serve bench serve",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument(
        "--preset",
        choices=PRESETS,
        help="cpu: minutes on 2 cores. tables: the published tables' form. serving: 128 prompts, "
        "512 tokens, C32, 32 warm-ups (give --dataset-path for ShareGPT). synthetic: the tables "
        "with random ids and the published acceptance lengths",
    )
    found.add_argument("--arms", type=arms, help=f"mode[@width|@auto],... (default: {TABLES_ARMS})")
    found.add_argument("--concurrency", type=counts, metavar="C,C", help="closed loop (1,8,32)")
    found.add_argument(
        "--request-rate", type=rates, default=(), metavar="R,R", help="open loop instead"
    )
    found.add_argument("--workload", type=names, help="names, comma-separated (default: gsm8k)")
    found.add_argument("--repeats", type=positive, metavar="N", help="fresh servers each (3)")
    found.add_argument("--warm-ups", type=positive, metavar="N", help="discarded, a run (8)")
    found.add_argument("--timeout-s", type=positive, default=600, help="of a request (%(default)s)")
    found.add_argument(
        "--out", type=folder, default=Path("bench-serve"), help="folder of results (%(default)s)"
    )
    found.add_argument(
        "--synthetic-acceptance",
        metavar="A",
        help="pretend acceptance, to measure cost alone: a mean length, a rate a position, or "
        "'published' for the published lengths of each arm, load and workload",
    )
    found.add_argument("--json", type=new_file, metavar="FILE", help="result.json, elsewhere")
    found.add_argument(
        "--max-prompt-tokens", type=positive, metavar="N", help="longer prompts are left out"
    )
    add_prompt_arguments(found, most=str(DEFAULTS["num_prompts"]))
    add_stack_arguments(found)
    found.set_defaults(mode=None, max_tokens=None, dtype="float32", device="cpu")
    return found


def rates(text: str) -> tuple[float, ...]:
    """argparse type: comma-separated rates above 0."""
    return tuple(rate(part) for part in text.split(","))


def settle(args: argparse.Namespace) -> argparse.Namespace:
    """Fills what no flag said: from the preset, else the defaults."""
    types = {"arms": arms, "concurrency": counts, "workload": names}
    for name, value in {**DEFAULTS, **PRESETS.get(args.preset, {})}.items():
        if getattr(args, name) is None:
            setattr(args, name, types[name](value) if name in types else value)
    if args.workload is None:
        args.workload = () if args.dataset_path else ("gsm8k",)
    return args


def loads(args: argparse.Namespace) -> tuple[Load, ...]:
    if args.request_rate:
        return tuple(Load(request_rate=at) for at in args.request_rate)
    return tuple(Load(concurrency=count) for count in args.concurrency)


def is_full(args: argparse.Namespace) -> bool:
    """Whether its figures may be kept: three repeats, closed loop, some length."""
    return bool(args.repeats >= 3 and not args.request_rate and args.max_tokens >= 128)
