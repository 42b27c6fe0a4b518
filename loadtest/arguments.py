"""The flags that say what load is sent; shared by `python -m loadtest` and `bench serve`."""

import argparse
import math
import os
from pathlib import Path

from domino_cli.argument_types import positive
from domino_cli.errors import UsageError
from domino_client import Client, ModelInfo, ServingError
from loadtest.prompts import (
    NAMES,
    RANDOM,
    LoadPrompt,
    Served,
    dataset_prompts,
    random_prompts,
    workload_prompts,
)

ASK_TIMEOUT_REMEDY = "start it with `domino-serve up`, or give its --address"


def add_prompt_arguments(parser: argparse.ArgumentParser, *, most: str = "all") -> None:
    """most: how many prompts the command takes where no flag says it."""
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--dataset-path",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="JSONL or JSON of prompts: ShareGPT, Alpaca, MBPP, MT-Bench, messages, token_ids",
    )
    group.add_argument("--num-prompts", type=positive, metavar="N", help=f"of each ({most})")
    group.add_argument(
        "--max-tokens", type=positive, default=256, metavar="N", help="of an answer (256)"
    )
    group.add_argument("--ignore-eos", action="store_true", help="always write --max-tokens tokens")
    group.add_argument(
        "--no-chat", action="store_true", help="prompts as plain text, without the chat template"
    )
    group.add_argument(
        "--random-input-len", type=positive, default=512, metavar="N", help="of 'random': ids (512)"
    )
    group.add_argument("--seed", type=int, default=42, help="of random ids and arrival times (42)")


def names(text: str) -> tuple[str, ...]:
    """argparse type: comma-separated workloads."""
    found = tuple(text.split(","))
    for name in found:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"workload {name!r} is unknown; known: {NAMES}")
    return found


def counts(text: str) -> tuple[int, ...]:
    """argparse type: comma-separated integers of at least 1, such as concurrencies."""
    return tuple(positive(part) for part in text.split(","))


def rate(text: str) -> float:
    """argparse type: requests a second."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate above 0")
    return value


def folder(text: str) -> Path:
    """argparse type: a folder that can be written, made if need be; found out before the run."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


def load_prompts(
    args: argparse.Namespace, workloads: tuple[str, ...], served: Served
) -> dict[str, list[LoadPrompt]]:
    """Prompts of every workload and dataset by name. Raises UsageError or CommandError."""
    found: dict[str, list[LoadPrompt]] = {}
    for name in workloads:
        if name == RANDOM:
            count = args.num_prompts or 128
            found[name] = random_prompts(count, args.random_input_len, args.seed, served)
        else:
            found[name] = workload_prompts(name, args.num_prompts)
    for path in args.dataset_path:
        found[path.stem] = dataset_prompts(path, args.num_prompts)
    return found


def model_info(address: str) -> ModelInfo:
    """What the router serves. Raises UsageError when nothing answers there."""
    try:
        with Client(address) as client:
            return client.model_info()
    except ServingError as error:
        raise UsageError(
            f"address: no router at {address} ({error}); {ASK_TIMEOUT_REMEDY}"
        ) from None
