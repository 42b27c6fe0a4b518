"""Greedy acceptance: proposals are kept while they are what the target would have said."""

from collections.abc import Sequence
from itertools import takewhile


def accept(proposals: Sequence[int], choices: Sequence[int]) -> int:
    """Number of accepted proposals.

    choices[j] is the target's argmax after the current token and the first j proposals, so
    len(choices) == len(proposals) + 1; the step emits choices[: accepted + 1], the last one being
    the bonus token.
    """
    assert len(choices) == len(proposals) + 1, f"{len(choices)} choices, {len(proposals)} proposals"
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(proposals, choices)))  # noqa: B905
