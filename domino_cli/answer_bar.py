"""How far `data regenerate` is: answers that ended and tokens so far in, a bar or lines out."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from domino_cli.progress import Bar

if TYPE_CHECKING:
    from training.engine_answers import Failed
    from training.regenerate import Answered


class AnswerBar:
    """The time left: answers to come are taken to be as long as those that have ended."""

    def __init__(self, total: int, wanted: Sequence[int], new_tokens: int) -> None:
        """total: prompts, of which `wanted` have no answer yet; an answer has `new_tokens` at
        most."""
        self._bar = Bar(total, logged=True)
        self._before, self._wanted = total - len(wanted), len(wanted)
        self._ended, self._tokens, self._longest = 0, 0, new_tokens
        self._all = 0  # tokens, those of answers to come too
        self._first: tuple[float, int] | None = None  # time and tokens: loading is no speed

    def add(self, found: "Answered | Failed") -> None:
        """One more is done."""
        from training.engine_answers import Failed

        self._ended += 1
        self._tokens += 0 if isinstance(found, Failed) else len(found.tokens)
        self.tick(self._tokens)

    def tick(self, tokens: int) -> None:
        """Draws; tokens: of all answers so far, those that have not ended too."""
        now, self._all = time.monotonic(), max(self._all, tokens)
        if self._first is None:
            self._first = now, self._all
            return
        began, before = self._first
        mean = self._tokens / self._ended if self._ended else self._longest
        speed = (self._all - before) / (now - began) if now > began else 0.0
        left = max(0.0, self._wanted * mean - self._all) / speed if speed else 0.0
        self._bar.draw(self._before + self._ended, left, f"{speed:.0f} tokens/s")

    def clear(self) -> None:
        self._bar.clear()
