"""`domino-serve bench acceptance`: how many proposals the target accepts, DFlash against Domino.

Real prompts through the three running services, several at once: what is counted does not depend
on time. DFlash mode is the base branch of the same draft.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks import provenance
from benchmarks.arms import ServiceArm
from benchmarks.cpu_plan import new_file
from benchmarks.rounds import DRAFTING
from benchmarks.sample import Prompt, Sample, acceptance_length, accepted_shares
from benchmarks.text_table import text_table
from benchmarks.workloads import WORKLOADS, load
from domino_cli.progress import say
from domino_cli.stack import Stack
from domino_cli.stack_arguments import add_stack_arguments, positive, stack_config
from domino_client import Client

SHOWN_POSITIONS = 9
HEAD = (
    "workload",
    "mode",
    "width",
    "tokens",
    "steps",
    "acceptance length",
    "accepted to 1, 2, ...",
)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    origin = provenance.Origin.at_start(provenance.command("acceptance", argv))
    prompts = [
        Prompt(workload=name, index=index, text=text)
        for name in args.workload
        for index, text in enumerate(load(name, args.prompts))
    ]
    config = stack_config(args, show_logs=False)
    with Stack(config) as stack, Client(stack.router_address) as client:
        width = client.model_info().default_draft_tokens + 1
        arms = [ServiceArm(client, mode, width) for mode in DRAFTING]
        samples = [s for arm in arms for s in answer(arm, prompts, args)]
    if args.json:
        cpu = provenance.cpu().as_json()
        result = {"benchmark": "acceptance", **origin.at_end(), "cpu": cpu, "figures": []}
        result["rows"] = [as_json(name, of_mode) for name, of_mode in groups(samples)]
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(text_table(HEAD, [cells(name, of_mode) for name, of_mode in groups(samples)]))
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="domino-serve bench acceptance", description=__doc__)
    found.add_argument("--workload", nargs="+", choices=WORKLOADS, default=["gsm8k"])
    found.add_argument("--prompts", type=positive, default=16, metavar="N", help="%(default)s")
    found.add_argument("--max-tokens", type=positive, default=256, metavar="N", help="%(default)s")
    found.add_argument("--concurrency", type=positive, default=4, metavar="N", help="%(default)s")
    found.add_argument("--json", type=new_file, metavar="FILE", help="where the counts go")
    add_stack_arguments(found)
    found.set_defaults(mode="domino", device="cpu", dtype="float32")
    return found


def answer(arm: ServiceArm, prompts: Sequence[Prompt], args: argparse.Namespace) -> list[Sample]:
    """Every prompt by one arm, so many at a time; says how far it is."""
    samples: list[Sample] = []
    with ThreadPoolExecutor(args.concurrency) as threads:
        for sample in threads.map(lambda prompt: arm.answer(prompt, args.max_tokens), prompts):
            samples.append(sample)
            length = acceptance_length(samples)
            say(f"{arm.name} {len(samples)}/{len(prompts)}: acceptance length {length:.2f} so far")
    return samples


def groups(samples: Sequence[Sample]) -> list[tuple[str, list[Sample]]]:
    """Samples by workload and mode, in the order they came."""
    keys = dict.fromkeys((s.prompt.workload, s.arm) for s in samples)
    return [
        (workload, [s for s in samples if (s.prompt.workload, s.arm) == (workload, arm)])
        for workload, arm in sorted(keys, key=lambda key: list(WORKLOADS).index(key[0]))
    ]


def cells(workload: str, samples: Sequence[Sample]) -> list[str]:
    shares = accepted_shares(samples)
    return [
        workload,
        samples[0].arm,
        str(samples[0].width),
        str(sum(s.step_tokens for s in samples)),
        str(sum(s.verify_steps for s in samples)),
        f"{acceptance_length(samples):.3f}",
        " ".join(f"{share:.2f}" for share in shares[:SHOWN_POSITIONS]),
    ]


def as_json(workload: str, samples: Sequence[Sample]) -> dict[str, object]:
    return {
        "workload": workload,
        "mode": samples[0].arm,
        "width": samples[0].width,
        "prompts": len(samples),
        "step_tokens": sum(s.step_tokens for s in samples),
        "verify_steps": sum(s.verify_steps for s in samples),
        "acceptance_length": acceptance_length(samples),
        "accepted_shares": accepted_shares(samples),
    }


if __name__ == "__main__":
    from domino_cli.__main__ import main as cli

    sys.exit(cli(["bench", "acceptance", *sys.argv[1:]]))
