"""Progress lines for people, on stderr: stdout carries results alone."""

import sys
import time
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


class Bar:
    """A bar with the time left, on a terminal only."""

    WIDTH, EVERY_S = 30, 0.1

    def __init__(self, total: int) -> None:
        self._total, self._next = total, 0.0

    def draw(self, done: int, left_s: float, note: str = "") -> None:
        """`done` of the total; draws ten times a second at most."""
        now = time.monotonic()
        if now < self._next and done < self._total:
            return
        self._next = now + self.EVERY_S
        filled = self.WIDTH * done // self._total
        left = time.strftime("%H:%M:%S", time.gmtime(left_s))
        bar = "#" * filled + "-" * (self.WIDTH - filled)
        overwrite(f"[{bar}] {done}/{self._total}, {left} left {note}".rstrip())

    def clear(self) -> None:
        clear()
