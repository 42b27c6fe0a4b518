"""`domino-serve bench NAME`: runs a program of benchmarks/, which has its own flags."""

import argparse
import importlib

from domino_cli.errors import CommandError, told_in_a_line

NAMES = ("cpu", "acceptance", "serve", "timeline", "router")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=NAMES, metavar=" | ".join(NAMES), help="which benchmark")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="its own flags, such as --help"
    )


def run(args: argparse.Namespace) -> int:
    try:
        program = importlib.import_module(f"benchmarks.{args.name}")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"module {error.name} is missing; benchmarks run in a clone of the project, "
            "after `make setup`"
        ) from error
    with told_in_a_line():
        code: int = program.main(args.arguments)
    return code
