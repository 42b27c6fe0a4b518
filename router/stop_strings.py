"""Text in as tokens produce it, text out that belongs to no stop string, until one is there.

The rule: a completion ends with the first token after which its text contains a stop string, and
its text ends before the string; where several are found, before the one that begins first.
"""

from collections.abc import Sequence
from typing import Final

from serving.errors import BadRequest

MAX_STRINGS: Final = 16
MAX_CHARS: Final = 256
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def check_stop_strings(strings: Sequence[str]) -> None:
    """Raises BadRequest for strings that could never be found, or cost too much to look for."""
    if len(strings) > MAX_STRINGS:
        raise BadRequest("stop", f"{len(strings)} strings, {MAX_STRINGS} at most")
    for index, string in enumerate(strings):
        if not 1 <= len(string) <= MAX_CHARS:
            raise BadRequest("stop", f"[{index}] has {len(string)} characters, 1 to {MAX_CHARS}")
        if _REPLACEMENT in string:
            raise BadRequest("stop", f"[{index}] contains U+FFFD, which stands for no text")


class StopStrings:
    """`found` is the string that ended the completion; nothing is pushed after it."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""  # final text that could be the beginning of a stop string
        self._given = 0  # characters given away before it
        self._ignored = 0  # characters in which no stop string may end
        self.found: str | None = None

    def push(self, final: str, pending: str, *, may_stop: bool) -> str:
        """One token's text -> text that can be given away.

        final: what the token made final; pending: what the text goes on with as it stands, but
        which later tokens can still change. Strings that end here do not count unless `may_stop`.
        """
        text = self._held + final + pending
        if not may_stop:
            self._ignored = self._given + len(text.rstrip(_REPLACEMENT))
        elif match := self._find(text):
            start, self.found = match
            return text[:start]
        return self._give(self._held + final)

    def finish(self, pending: str) -> str:
        """What was held back, when the completion ended otherwise."""
        return self._held + pending

    def _find(self, text: str) -> tuple[int, str] | None:
        """Start and string of the first match that ends beyond what is ignored."""
        ignored = self._ignored - self._given
        matches = [
            (text.find(string, max(ignored - len(string) + 1, 0)), order)
            for order, string in enumerate(self._strings)
        ]
        start, order = min((match for match in matches if match[0] >= 0), default=(-1, 0))
        return None if start < 0 else (start, self._strings[order])

    def _give(self, text: str) -> str:
        """Keeps the longest end of the text that a stop string begins with."""
        longest = 0
        for string in self._strings:
            for size in range(min(len(string) - 1, len(text)), longest, -1):
                if text.endswith(string[:size]):
                    longest = size
                    break
        given = text[: len(text) - longest]
        self._held = text[len(given) :]
        self._given += len(given)
        return given
