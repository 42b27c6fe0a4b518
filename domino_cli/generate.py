"""`domino-serve generate`: one prompt, its answer streamed or as one JSON object."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from domino_cli.access_arguments import (
    add_tls_arguments,
    add_token_argument,
    address,
    refuse_access_flags,
    tls_of,
    token_of,
)
from domino_cli.ask import Answer, ask
from domino_cli.errors import CommandError, UsageError
from domino_cli.progress import say
from domino_cli.request_arguments import add_request_arguments, request_args
from domino_cli.stack import Stack, flag
from domino_cli.stack_arguments import (
    STACK_FLAGS,
    add_sampling_argument,
    add_stack_arguments,
    stack_config,
)
from domino_client import Client, PeerUnavailable

START = "Start one with `domino-serve up`, or leave --address out"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue, '-' reads stdin")
    parser.add_argument("--chat", action="store_true", help="PROMPT is a user's turn of a chat")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_request_arguments(parser)
    parser.add_argument(
        "--address",
        type=address,
        metavar="HOST:PORT",
        help="a running router (default: start the services)",
    )
    add_tls_arguments(parser)
    add_token_argument(parser)
    parser.add_argument("--logs", action="store_true", help="show the logs of started services")
    add_stack_arguments(parser)
    add_sampling_argument(parser)


def run(args: argparse.Namespace) -> int:
    text, request = request_args(args, read_prompt(args.prompt))
    if args.address is None:
        refuse_access_flags(args)
    tls, token = tls_of(args), token_of(args) if args.address else None
    with router(args) as place, Client(place, tls=tls, token=token) as client:
        on_text = ignore if args.json else write
        try:
            answer = ask(client, text, on_text, **request)
        except PeerUnavailable as error:
            raise CommandError(f"{error}; is a router running at {place}? {START}") from error
    if args.json:
        print(json.dumps(answer.as_json()))
    else:
        print()
        say(summary(answer))
    return 0


def read_prompt(text: str) -> str:
    """The argument, or all of stdin for '-'. Raises UsageError for an empty or undecodable one."""
    try:
        prompt = sys.stdin.buffer.read().decode() if text == "-" else text
        prompt.encode()
    except UnicodeError as error:
        raise UsageError(f"prompt: not valid UTF-8 ({error})") from error
    if not prompt:
        raise UsageError("prompt: is empty")
    return prompt


@contextmanager
def router(args: argparse.Namespace) -> Iterator[str]:
    """Address of the given router, or of one started for this command and stopped after it."""
    if args.address is None:
        with Stack(stack_config(args, show_logs=args.logs)) as stack:
            yield stack.router_address
        return
    given = [name for name in STACK_FLAGS if getattr(args, name) is not None]
    for name in [*given, *(["logs"] if args.logs else [])]:
        raise UsageError(f"{flag(name)} is for services started here, not with --address")
    yield args.address


def write(text: str) -> None:
    print(text, end="", flush=True)


def ignore(text: str) -> None:
    """With --json the text is part of the object."""


def summary(answer: Answer) -> str:
    completion, speculation = answer.completion, answer.completion.speculation
    seed = f", seed {completion.sampling.seed}" if completion.sampling else ""
    return (
        f"[{speculation.mode}, width {speculation.width}: {completion.completion_tokens} tokens, "
        f"{answer.tokens_per_s:.1f} tokens/s, acceptance length "
        f"{speculation.acceptance_length:.2f}, TTFT {answer.ttft_s * 1e3:.0f} ms, "
        f"finished by {completion.finish_reason}{seed}]"
    )
