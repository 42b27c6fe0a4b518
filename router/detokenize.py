"""Token ids of one completion in, as they are committed; the text that has become final out."""

from collections.abc import Iterable

from router.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Pieces concatenate to the decoding of all ids; text once given never changes.

    Held back until it is settled: the last character while its bytes are incomplete, and a run
    of byte-fallback tokens, which one more byte can turn into other characters altogether.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # ids that can still influence the text of later ones
        self._clean = 0  # ids of the window whose text was complete at an earlier push
        self._sent = 0  # characters of the window's text given away

    def push(self, ids: Iterable[int]) -> str:
        self._window += self._tokenizer.visible(ids)
        settled = len(self._window)
        while settled and self._window[settled - 1] in self._tokenizer.byte_ids:
            settled -= 1
        text = self._tokenizer.decode(self._window[:settled])
        complete = text.removesuffix(_REPLACEMENT)
        piece = complete[self._sent :]
        self._sent = max(self._sent, len(complete))
        if text == complete and self._clean < settled == len(self._window):
            self._forget()
        return piece

    def finish(self) -> str:
        """What was held back; incomplete bytes become U+FFFD."""
        return self._tokenizer.decode(self._window)[self._sent :]

    def _forget(self) -> None:
        """Keeps the ids since the last complete text: a decoder may look at its left neighbour."""
        del self._window[: self._clean]
        self._clean = len(self._window)
        self._sent = len(self._tokenizer.decode(self._window))
