"""Progress lines for people, on stderr: stdout carries results alone."""

import sys
import time
from collections.abc import Callable
from datetime import timedelta

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


class Bar:
    """A bar with the time left, ten times a second on a terminal; elsewhere, where `logged`, a line
    now and then."""

    WIDTH, EVERY_S, LOGGED_EVERY_S = 30, 0.1, 30.0

    def __init__(self, total: int, *, logged: bool = False) -> None:
        self._total, self._next = total, 0.0
        self._logs = logged and not sys.stderr.isatty()

    def draw(self, done: int, left_s: float, note: str = "") -> None:
        """`done` of the total."""
        now = time.monotonic()
        if now < self._next and (done < self._total or self._logs):
            return
        self._next = now + (self.LOGGED_EVERY_S if self._logs else self.EVERY_S)
        left = timedelta(seconds=round(left_s))
        line = f"{done}/{self._total}, {left} left {note}".rstrip()
        if self._logs:
            return say(line)
        filled = self.WIDTH * done // self._total
        overwrite(f"[{'#' * filled}{'-' * (self.WIDTH - filled)}] {line}")

    def clear(self) -> None:
        clear()
