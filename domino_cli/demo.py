"""`domino-serve demo`: three prompts in AR, DFlash and Domino mode, then one table.

The AR answer is the reference: another answer in another mode is an error, exit code 1.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace

from domino_cli.argument_types import positive
from domino_cli.ask import Answer, ask
from domino_cli.demo_report import Arm, as_json, as_table
from domino_cli.progress import say
from domino_cli.stack import Stack
from domino_cli.stack_arguments import MODES, add_stack_arguments, stack_config
from domino_client import ChatTurn, Client
from serving.contract import ModeName

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain why the sky is blue.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens", type=positive, default=96, metavar="N", help="per answer (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--logs", action="store_true", help="show the services' logs")
    add_stack_arguments(parser)
    parser.set_defaults(mode=None, device="cpu", dtype="float32")


def run(args: argparse.Namespace) -> int:
    config = stack_config(args, show_logs=args.logs)
    say(f"starting services for {config.target.name} in {config.dtype} on {config.device}")
    with Stack(config) as stack, Client(stack.router_address) as client:
        say(stack.summary())
        show = quiet if args.json else show_text
        arms = run_arms(client, args.max_tokens, show)
    say("services stopped")
    arms = [replace(arm, identical=same(arm, arms[0])) for arm in arms]
    print(json.dumps(as_json(arms, PROMPTS)) if args.json else as_table(arms, len(PROMPTS)))
    return 0 if all(all(arm.identical) for arm in arms) else 1


def run_arms(client: Client, max_tokens: int, show: Callable[[str], None]) -> list[Arm]:
    """Every prompt in every mode the router can run, AR first; a short round before warms up.

    Prompt by prompt, so that a machine that slows down meanwhile slows all modes alike.
    """
    served = client.model_info().modes
    answers: dict[ModeName, list[Answer]] = {mode: [] for mode in MODES if mode in served}
    for mode in answers:
        chat(client, PROMPTS[0], mode, 8, quiet)
    for number, prompt in enumerate(PROMPTS, start=1):
        show(f"\n=== prompt {number}: {prompt}\n")
        for mode, found in answers.items():
            show(f"\n--- {mode}\n")
            found.append(chat(client, prompt, mode, max_tokens, show))
            show("\n")
    return [Arm(mode=mode, answers=tuple(found)) for mode, found in answers.items()]


def chat(
    client: Client, prompt: str, mode: ModeName, max_tokens: int, on_text: Callable[[str], None]
) -> Answer:
    turns: list[ChatTurn] = [{"role": "user", "content": prompt}]
    return ask(client, None, on_text, chat=turns, mode=mode, max_tokens=max_tokens)


def same(arm: Arm, reference: Arm) -> tuple[bool, ...]:
    """Per prompt, whether the token ids and the end are the reference's."""
    pairs = zip(arm.answers, reference.answers, strict=True)
    return tuple(
        a.completion.token_ids == b.completion.token_ids
        and a.completion.finish_reason == b.completion.finish_reason
        for a, b in pairs
    )


def show_text(text: str) -> None:
    print(text, end="", flush=True)


def quiet(text: str) -> None:
    """Warm-up and --json show no text."""
