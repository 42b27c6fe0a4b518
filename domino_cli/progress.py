"""Progress lines for people, on stderr: stdout carries results alone."""

import sys
from collections.abc import Callable

Say = Callable[[str], None]


def say(line: str) -> None:
    clear()
    print(line, file=sys.stderr, flush=True)


def overwrite(line: str) -> None:
    """A line that replaces the last one on a terminal; elsewhere nothing, logs stay short."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def clear() -> None:
    overwrite("")
