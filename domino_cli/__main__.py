"""`domino-serve COMMAND`: parses, runs the command, turns its errors into one line and a code.

Exit codes: 0 done, 1 failed at run time, 2 the user's input, 130 interrupted.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType

from domino_cli import (
    bench,
    data,
    demo,
    generate,
    inspect_checkpoint,
    models,
    token,
    train,
    up,
    update_draft,
)
from domino_cli.errors import CommandError
from serving.errors import BadRequest, ServingError
from serving.options import Parser

COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "up": (up, "start verify, draft and router on this machine, and again if they end"),
    "generate": (generate, "answer one prompt"),
    "demo": (demo, "answer three prompts in AR, DFlash and Domino mode and compare"),
    "models": (models, "pull or list the models that come with this project"),
    "inspect": (inspect_checkpoint, "show what is understood of a checkpoint"),
    "data": (data, "prepare text for training a draft"),
    "train": (train, "train a draft, or go on with a run"),
    "update-draft": (update_draft, "serve a new draft checkpoint without a restart"),
    "token": (token, "make a bearer token for a router's --callers file"),
    "bench": (bench, "measure speed on this machine"),
}


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="domino-serve",
        description="LLM serving with speculative decoding: router, draft and verify services.",
    )
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, about) in COMMANDS.items():
        sub = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return result


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    signal.signal(signal.SIGTERM, interrupt)  # so that services are stopped on the way out
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except CommandError as error:
        print(f"domino-serve {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except ServingError as error:
        print(f"domino-serve {args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadRequest) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `domino-serve ... | head`; stdout is flushed once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
