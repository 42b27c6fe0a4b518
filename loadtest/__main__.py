"""`python -m loadtest`: one load on a running router, its summary printed and kept.

Headless, or with locust's page (--web). `domino-serve bench serve` compares arms with it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from domino_cli.argument_types import positive
from domino_cli.errors import CommandError
from domino_cli.progress import say
from domino_cli.stack_arguments import MODES
from domino_client import ServingError
from loadtest.arguments import add_prompt_arguments, folder, load_prompts, model_info, names, rate
from loadtest.console import block
from loadtest.plan import Plan
from loadtest.run import run, watch
from loadtest.summary import summarise
from serving.options import Parser

RECORDS = "requests.jsonl"


def parser() -> argparse.ArgumentParser:
    found = Parser(prog="python -m loadtest", description=__doc__)
    found.add_argument("--address", default="127.0.0.1:50050", help="the router (%(default)s)")
    found.add_argument("--workload", type=names, help="names, comma-separated (default: gsm8k)")
    found.add_argument("--concurrency", type=positive, default=1, metavar="C", help="closed loop")
    found.add_argument("--request-rate", type=rate, metavar="R", help="open loop: requests/s")
    found.add_argument("--run-time-s", type=rate, metavar="S", help="send for so long, in circles")
    found.add_argument("--warm-ups", type=int, default=0, metavar="N", help="discarded requests")
    found.add_argument("--mode", choices=MODES, help="default: the server's")
    found.add_argument("--draft-tokens", type=int, metavar="N", help="default: the server's")
    found.add_argument("--out", type=folder, default=Path("loadtest-out"), help="%(default)s")
    found.add_argument("--web", type=int, metavar="PORT", help="locust's page instead of headless")
    add_prompt_arguments(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        return measure(plan_of(args), args)
    except CommandError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return error.exit_code
    except ServingError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"loadtest: stopped; {args.out / RECORDS} has what was answered", file=sys.stderr)
        return 130


def plan_of(args: argparse.Namespace) -> Plan:
    """Raises UsageError for what cannot be sent."""
    workloads = args.workload or (() if args.dataset_path else ("gsm8k",))
    prompts = load_prompts(args, workloads, model_info(args.address))
    return Plan(
        address=args.address,
        prompts=tuple(prompt for found in prompts.values() for prompt in found),
        concurrency=args.concurrency,
        request_rate=args.request_rate,
        run_time_s=args.run_time_s,
        mode=args.mode,
        draft_tokens=args.draft_tokens,
        max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos or args.workload == ("random",),
        chat=not args.no_chat,
        warm_ups=args.warm_ups,
        seed=args.seed,
    )


def measure(plan: Plan, args: argparse.Namespace) -> int:
    """Exit code 1 when not every request succeeded; what there is, is kept and printed."""
    records = args.out / RECORDS
    if args.web is not None:
        return watch(plan, records, args.web, say)
    outcome = run(plan, records)
    summary = {**plan.settings(), **summarise(outcome.records, plan.settings())}
    summary["incomplete"] = outcome.incomplete
    (args.out / "summary.json").write_text(json.dumps(summary) + "\n")
    print(block(summary))
    if outcome.incomplete:
        say(f"PARTIAL: {outcome.incomplete}")
    return 1 if outcome.incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
