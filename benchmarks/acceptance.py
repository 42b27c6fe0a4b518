"""`domino-serve bench acceptance`: how many proposals the target accepts, DFlash against Domino.

Real prompts through the three running services, several at once: what is counted does not depend
on time. DFlash mode is the base branch of the same draft. With --samples a run that was interrupted
goes on where it ended.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from benchmarks import provenance
from benchmarks.arms import ServiceArm
from benchmarks.cpu_plan import new_file
from benchmarks.rounds import DRAFTING, minutes
from benchmarks.sample import Prompt, Sample, acceptance_length, accepted_shares
from benchmarks.sample_log import SampleLog
from benchmarks.text_table import text_table
from benchmarks.workloads import WORKLOADS, load
from domino_cli.argument_types import positive
from domino_cli.progress import say
from domino_cli.stack import Stack
from domino_cli.stack_arguments import add_stack_arguments, stack_config
from domino_client import Client, ModelInfo
from serving.options import Parser

ALL = "all"
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
        for name in names(args.workload)
        for index, text in enumerate(load(name, args.prompts))
    ]
    config = replace(stack_config(args, show_logs=False), confidence_threshold=None)
    with Stack(config) as stack, Client(stack.router_address) as client:
        info = client.model_info()
        log = SampleLog.open(args.samples, settings(info, args))
        arms = [ServiceArm(client, mode, info.default_draft_tokens + 1) for mode in DRAFTING]
        samples = answer_all(arms, prompts, args, log)
        log.close()
    if args.json:
        cpu = provenance.cpu().as_json()
        result = {"benchmark": "acceptance", **origin.at_end(), "cpu": cpu, "figures": []}
        result["rows"] = [as_json(name, of_mode) for name, of_mode in groups(samples)]
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(text_table(HEAD, [cells(name, of_mode) for name, of_mode in groups(samples)]))
    return 0


def parser() -> argparse.ArgumentParser:
    found = Parser(prog="domino-serve bench acceptance", description=__doc__)
    found.add_argument("--workload", nargs="+", choices=(*WORKLOADS, ALL), default=["gsm8k"])
    found.add_argument("--prompts", type=positive, default=16, metavar="N", help="%(default)s")
    found.add_argument("--max-tokens", type=positive, default=256, metavar="N", help="%(default)s")
    found.add_argument("--concurrency", type=positive, default=4, metavar="N", help="%(default)s")
    found.add_argument("--json", type=new_file, metavar="FILE", help="where the counts go")
    found.add_argument(
        "--samples", type=new_file, metavar="FILE", help="keeps each answer's counts; goes on there"
    )
    add_stack_arguments(found)
    found.set_defaults(mode="domino", device="cpu", dtype="float32")
    return found


def names(given: Sequence[str]) -> list[str]:
    """Workloads to run, each once."""
    return list(WORKLOADS) if ALL in given else list(dict.fromkeys(given))


def settings(info: ModelInfo, args: argparse.Namespace) -> dict[str, object]:
    """What samples of one file have in common."""
    return {
        "target_hash": info.target_hash,
        "draft_hash": info.draft_hash,
        "dtype": info.dtype,
        "domino_candidates": args.domino_candidates,
        "max_tokens": args.max_tokens,
    }


def answer_all(
    arms: Sequence[ServiceArm], prompts: Sequence[Prompt], args: argparse.Namespace, log: SampleLog
) -> list[Sample]:
    """Every prompt by every arm, workload after workload; says how far it is."""
    samples = [s for arm in arms for p in prompts if (s := log.find(arm.name, arm.width, p))]
    done = {(s.arm, s.prompt) for s in samples}
    left = [
        (arm, prompt)
        for name in dict.fromkeys(p.workload for p in prompts)
        for arm in arms
        for prompt in prompts
        if prompt.workload == name and (arm.name, prompt) not in done
    ]
    if samples:
        say(f"{len(samples)} of {len(samples) + len(left)} answers are in {args.samples}")
    begin = time.perf_counter()
    with ThreadPoolExecutor(args.concurrency) as threads:
        found = threads.map(lambda item: item[0].answer(item[1], args.max_tokens), left)
        for number, sample in enumerate(found, start=1):
            log.add(sample)
            samples.append(sample)
            left_s = (time.perf_counter() - begin) / number * (len(left) - number)
            of_group = [s for s in samples if group(s) == group(sample)]
            say(
                f"{number}/{len(left)} {sample.prompt.workload} {sample.arm}: acceptance length "
                f"{acceptance_length(of_group):.2f} after {len(of_group)}; {minutes(left_s)} left"
            )
    return samples


def group(sample: Sample) -> tuple[str, str]:
    """A row of the table."""
    return sample.prompt.workload, sample.arm


def groups(samples: Sequence[Sample]) -> list[tuple[str, list[Sample]]]:
    """Samples by workload and mode, in the order they came."""
    keys = dict.fromkeys(map(group, samples))
    return [
        (key[0], [s for s in samples if group(s) == key])
        for key in sorted(keys, key=lambda key: list(WORKLOADS).index(key[0]))
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
