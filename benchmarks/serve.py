"""`domino-serve bench serve`: arms side by side under load, on fresh servers, by locust.

Tables in the published form on stdout; in --out every request's record, every cell, result.json
for benchmarks.collect and report.html. Exit code 1 for a partial run, or a float32 answer that is
not AR's.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import provenance
from benchmarks.report_html import report
from benchmarks.serve_arm import Arm
from benchmarks.serve_cell import Cells
from benchmarks.serve_figures import figures
from benchmarks.serve_machine import MOST_OTHER_WORK, Machine
from benchmarks.serve_null import null_baseline, null_line
from benchmarks.serve_plan import ServePlan, is_full, loads, parser, settle
from benchmarks.serve_prompts import Prompts, fitting_prompts
from benchmarks.serve_published import PUBLISHED, WORKLOADS, published_length
from benchmarks.serve_run import run_all
from benchmarks.serve_table import tables
from benchmarks.timeline import read_timeline, timeline_table
from domino_cli.errors import UsageError
from domino_cli.progress import say
from domino_cli.stack_arguments import stack_config
from loadtest.plan import Plan
from loadtest.prompts import RANDOM

NOWHERE = "127.0.0.1:1"  # the address is each stack's own


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = settle(parser(__doc__).parse_args(argv))
    origin = provenance.Origin.at_start(provenance.command("serve", argv))
    config = stack_config(args, show_logs=False)
    if config.draft is None and any(not arm.is_plain for arm in args.arms):
        raise UsageError("arms: drafting ones need --draft")
    prompts = fitting_prompts(args, config)
    plan = plan_of(args, prompts)
    config = replace(config, **sizes(plan, prompts.longest, args))
    base = null_baseline(plan, args.out)
    say(null_line(base))
    machine = Machine()
    cells = Cells(cells=run_all(plan, config, args.out))
    whole = {**origin.at_end(), "null_server": base, "other_work": machine.other_work()}
    return conclude(args, plan, cells, whole)


def plan_of(args: argparse.Namespace, prompts: Prompts) -> ServePlan:
    """Raises UsageError where published acceptance is asked for and none was published."""
    if args.synthetic_acceptance == PUBLISHED:
        for load in loads(args):
            for arm in args.arms:
                if not arm.is_plain:
                    published_length(load.label, arm.name, WORKLOADS[0])
    base = Plan(
        address=NOWHERE,
        prompts=tuple(next(iter(prompts.by_name.values()))),
        max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos or RANDOM in args.workload,
        chat=prompts.chat,
        warm_ups=args.warm_ups,
        timeout_s=args.timeout_s,
        seed=args.seed,
    )
    return ServePlan(
        arms=args.arms,
        loads=loads(args),
        prompts=prompts.by_name,
        repeats=args.repeats,
        base=base,
        synthetic=args.synthetic_acceptance,
    )


def sizes(plan: ServePlan, longest: int, args: argparse.Namespace) -> dict[str, Any]:
    """Room for all requests of the highest load at once: no arm waits or is preempted."""
    open_loop = any(load.request_rate for load in plan.loads)
    most = args.max_sequences or max(32 * open_loop, *(load.concurrency for load in plan.loads))
    block = 64  # positions verified beyond the committed ones, and a page's rounding
    return {
        "max_sequences": args.max_sequences or max(most, 32),
        "kv_tokens": max(16384, most * (longest + block + 256)),
    }


def conclude(
    args: argparse.Namespace, plan: ServePlan, cells: Cells, origin: dict[str, Any]
) -> int:
    """Prints the tables and writes the results; the exit code."""
    titles = {arm.name: arm.title for arm in plan.arms}
    about = label_of(args)
    timelines = {arm.title: timeline_of(args, arm) for arm in plan.arms}
    known = {title: found for title, found in timelines.items() if found}
    print(f"{about}\n\n{tables(cells, titles)}", flush=True)
    for title, found in known.items():
        print(f"\nWhere a step's time goes: {title}\n\n{timeline_table(found)}")
    compared = args.dtype == "float32" and not plan.synthetic
    exact = not compared or all(cells.identical(a.name) in (None, 1.0) for a in plan.arms)
    quiet = args.device != "cpu" or (origin["other_work"] or 0.0) <= MOST_OTHER_WORK
    kept = is_full(args) and exact and quiet and not cells.incomplete()
    result = {
        "benchmark": "serve",
        **origin,
        "about": about,
        "settings": plan.base.settings(),
        "figures": figures(cells, args, origin) if kept else [],
        "cells": [{**c.as_json(), "answers": len(c.answers)} for c in cells.cells],
    }
    (args.json or args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "report.html").write_text(report(cells, titles, known, about, origin, args.out))
    say(f"results, records and report.html are in {args.out}")
    return 0 if exact and not cells.incomplete() else 1


def timeline_of(args: argparse.Namespace, arm: Arm) -> dict[str, Any] | None:
    """The timeline of an arm's last repeat, if its service lived to write it."""
    file = args.out / f"{arm.name}-r{args.repeats - 1}.timeline.json"
    return read_timeline(file) if file.exists() else None


def label_of(args: argparse.Namespace) -> str:
    """What every table of this run is about."""
    acceptance = "real acceptance"
    if args.synthetic_acceptance:
        acceptance = (
            f"SYNTHETIC ACCEPTANCE ({args.synthetic_acceptance}): cost only, answers are not the "
            "target's"
        )
    target, draft = args.target or "embedded target", args.draft or "its draft"
    return (
        f"domino-serve, {target} with {draft}, {args.dtype} on {args.device}, greedy, "
        f"{args.max_tokens} new tokens at most, {args.repeats} repeats on fresh servers, "
        f"{acceptance}"
    )


if __name__ == "__main__":
    from domino_cli.__main__ import main as cli

    sys.exit(cli(["bench", "serve", *sys.argv[1:]]))
