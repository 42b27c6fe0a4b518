"""`domino-serve up`: the three services on this machine until Ctrl-C, again where one ends."""

import argparse
from dataclasses import replace
from pathlib import Path

from domino_cli.argument_types import host, port
from domino_cli.progress import say
from domino_cli.stack import Stack
from domino_cli.stack_arguments import (
    MODES,
    add_sampling_argument,
    add_stack_arguments,
    stack_config,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", type=host, default="127.0.0.1", help="address to listen on (%(default)s)"
    )
    parser.add_argument(
        "--port", type=port, default=50050, help="the router's port, 0 for a free one (%(default)s)"
    )
    parser.add_argument(
        "--metrics-port",
        type=metrics_port,
        metavar="N",
        help="HTTP port of the router's /metrics; verify's and draft's are N + 1 and N + 2",
    )
    parser.add_argument(
        "--sockets",
        type=Path,
        metavar="FOLDER",
        help="verify and draft listen on Unix sockets there, which only this user can use",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="mode of requests that name none (default: the strongest one there is)",
    )
    add_stack_arguments(parser)
    add_sampling_argument(parser)


def metrics_port(text: str) -> int:
    """argparse type: the first of three ports."""
    first = port(text)
    if first + 2 > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no ports for verify and draft")
    return first


def run(args: argparse.Namespace) -> int:
    config = replace(
        stack_config(args, show_logs=True),
        host=args.host,
        port=args.port,
        metrics_port=args.metrics_port,
        sockets=args.sockets,
    )
    with Stack(config) as stack:
        try:
            print(stack.summary(), flush=True)
            say(
                f"try: domino-serve generate --address {stack.router_address} --chat 'Who are you?'"
            )
            say("Ctrl-C stops all services")
            while True:
                stack.attend()
        except KeyboardInterrupt:
            say("stopping; running requests get up to 30 s, a second Ctrl-C ends them")
    return 0
