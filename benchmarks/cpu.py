"""`domino-serve bench cpu`: transformers, AR, DFlash and Domino on this CPU, a request at a time.

Fixed prompts through the three running services, in float32 and bfloat16. A float32 answer that is
not AR's token for token makes the exit code 1. The table comes last, everything else with --json.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import provenance
from benchmarks.arms import Arm, ServiceArm, TransformersArm
from benchmarks.cpu_plan import Plan, Prompts, add_arguments, is_full, load_prompts, plans
from benchmarks.cpu_report import as_json, sweep_table, table
from benchmarks.cpu_result import Measured, figures
from benchmarks.other_work import OtherWork
from benchmarks.provenance import Cpu
from benchmarks.rounds import best_widths, expected_s, minutes, run_rounds, sweep_arms
from domino_cli.models import resolve_model
from domino_cli.progress import say
from domino_cli.stack import Stack, StackConfig
from domino_cli.stack_config import CONFIDENCE_THRESHOLD
from domino_client import Client
from serving.options import Parser

WARM_UP_TOKENS = 4
MOST_OTHER_WORK = 0.25  # of the CPU time; beyond it, threads that wait for each other cost tenfold


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="domino-serve bench cpu", description=__doc__)
    add_arguments(parser)
    args = parser.parse_args(argv)
    origin = provenance.Origin.at_start(provenance.command("cpu", argv))
    cpu = provenance.cpu()
    say(f"{cpu}; a full run takes about 20 minutes on 2 cores and wants them for itself")
    chosen = plans(args)
    prompts = load_prompts(chosen)
    config = StackConfig(
        target=resolve_model(args.target),
        draft=resolve_model(args.draft),
        device="cpu",
        threads=args.threads,
        data_plane=args.data_plane,
        confidence_threshold=CONFIDENCE_THRESHOLD,
        show_logs=False,
    )
    measured = [measure(config, plan, prompts) for plan in chosen]
    if args.json:
        result = {"benchmark": "cpu", **origin.at_end(), "cpu": cpu.as_json()}
        result["figures"] = kept_figures(measured[0], result, cpu) if is_full(args) else []
        result["dtypes"] = [as_json(found) for found in measured]
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        say(f"everything measured is in {args.json}")
    return conclude(measured)


def measure(config: StackConfig, plan: Plan, prompts: Prompts) -> Measured:
    """Starts the services in the plan's dtype, finds the best widths and runs all arms."""
    say(f"{plan.dtype}: {plan.prompts} prompts of each workload, {plan.max_tokens} tokens")
    policy = "fixed" if plan.widths else "auto"
    config = replace(config, dtype=plan.dtype, width_policy=policy)
    with (
        Stack(config) as stack,
        Client(stack.router_address) as client,
        TransformersArm(config.target, plan.dtype, config.threads) as peer,
    ):
        held_out, timed = prompts.held_out(plan.sweep_prompts), prompts.timed(plan.prompts)
        most = client.model_info().default_draft_tokens + 1
        adaptive = not plan.widths
        candidates = [peer, *sweep_arms(client, plan.widths or (most,), adaptive=adaptive)]
        run_rounds(candidates, held_out[:1], WARM_UP_TOKENS, quiet)
        sweep = run_rounds(candidates, held_out, plan.sweep_tokens, say)
        widths = best_widths(sweep)
        say(f"{plan.dtype}, widths on {len(held_out)} prompts of their own:\n{sweep_table(sweep)}")
        drafting = [ServiceArm(client, m, w, adaptive=adaptive) for m, w in widths.items()]
        arms: list[Arm] = [peer, ServiceArm(client, "ar"), *drafting]
        most_s = expected_s(sweep, arms, len(timed) * plan.max_tokens)
        say(f"{plan.dtype}: {len(timed)} prompts by {len(arms)} arms, {minutes(most_s)} at most")
        others = OtherWork([os.getpid(), peer.pid, *stack.pids().values()])
        samples = run_rounds(arms, timed, plan.max_tokens, say)
        return Measured(
            plan=plan,
            threads=peer.about["threads"],
            other_work=others.share(),
            sweep=sweep,
            samples=samples,
        )


def quiet(line: str) -> None:
    """The warm-up's speeds mean nothing."""


def kept_figures(found: Measured, origin: dict[str, Any], cpu: Cpu) -> list[dict[str, Any]]:
    """None of a run that was not exact, or not alone on the machine; says so."""
    if found.is_exact and (found.other_work or 0) <= MOST_OTHER_WORK:
        return figures(found, origin, cpu)
    say(f"no figures are kept: exact: {found.is_exact}, {other_work(found)}")
    return []


def other_work(found: Measured) -> str:
    share = "an unknown share" if found.other_work is None else f"{found.other_work:.0%}"
    return f"other work took {share} of the CPU time"


def conclude(measured: Sequence[Measured]) -> int:
    """Prints the tables; the exit code is 1 where a float32 answer is not AR's."""
    for found in measured:
        print(f"\n{found.plan.dtype}, {other_work(found)}\n\n{table(found)}", flush=True)
    for found in measured:
        for sample in found.differing():
            where = f"{found.plan.dtype}, {sample.prompt.workload}[{sample.prompt.index}]"
            say(f"{where}: the answer in {sample.arm} mode is not AR's")
    return 0 if all(found.is_exact for found in measured) else 1


if __name__ == "__main__":
    from domino_cli.__main__ import main as cli

    sys.exit(cli(["bench", "cpu", *sys.argv[1:]]))
