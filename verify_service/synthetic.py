"""Synthetic acceptance, for benchmarks of cost alone: the target's choices in, pretended ones out.

Every step runs in full, then proposals are kept by given odds instead of the target's word. The
convention is vLLM's: a mean length, spread with the least variance, or a rate for each position.
"""

from collections.abc import Sequence as Seq
from hashlib import blake2b
from typing import Final

from serving.options import OptionError
from verify_service.scheduler import Work
from verify_service.sequence import Chosen

_OPTION: Final = "benchmark_synthetic_acceptance"


def parse_rates(text: str, draft_tokens: int) -> list[float]:
    """Share of steps that accept position 1, 2, ... of `draft_tokens`.

    text: a mean acceptance length such as "6.5", bonus included, or rates such as "0.9,0.8".
    Raises OptionError.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(_OPTION, text, "is no number and no list of rates") from None
    if len(values) == 1:
        if not 1 <= values[0] <= draft_tokens + 1:
            raise OptionError(_OPTION, text, f"as a length must be in 1..{draft_tokens + 1}")
        return [min(1.0, max(0.0, values[0] - 1 - place)) for place in range(draft_tokens)]
    if len(values) != draft_tokens:
        raise OptionError(_OPTION, text, f"needs {draft_tokens} rates, one a draft token")
    if not all(0 <= v <= 1 for v in values) or values != sorted(values, reverse=True):
        raise OptionError(_OPTION, text, "as rates must be in 0..1 and not rise")
    return values


class SyntheticAcceptance:
    """Answers are not the target's any more."""

    def __init__(self, rates: Seq[float], vocab_size: int) -> None:
        self._rates, self._vocab_size = rates, vocab_size

    def accepted(self, item: Work) -> int:
        """Proposals that the item keeps, -1 where it has none; the same whoever asks, and when.

        One draw decides a step, so that position j is accepted in just rates[j] of the steps.
        """
        if len(item.ids) < 2 or item.choices < len(item.ids):
            return -1
        place = f"{item.sequence.request.request_id}/{item.start}".encode()
        draw = int.from_bytes(blake2b(place, digest_size=6).digest()) / 2**48
        return sum(rate > draw for rate in self._rates[: len(item.ids) - 1])

    def chosen(self, work: Seq[Work], chosen: Seq[Chosen]) -> list[Chosen]:
        """The same, with proposals kept by the rates; plain steps stay as they are."""
        return [self._pretended(i, own) for i, own in zip(work, chosen, strict=True)]

    def _pretended(self, item: Work, own: Chosen) -> Chosen:
        """A device that has pretended already (`accepted` is Executor.pretend) changes nothing."""
        accepted, proposals = self.accepted(item), item.ids[1:]
        if accepted < 0 or not own.usable:
            return own
        after = list(own.ids[accepted:])
        if accepted < len(proposals) and after[0] == proposals[accepted]:
            after[0] = (after[0] + 1) % self._vocab_size
        return Chosen(ids=[*proposals[:accepted], *after])
