"""Greedy acceptance: proposals are kept while they are what the target would have said."""

from collections.abc import Sequence


def accept(proposals: Sequence[int], choices: Sequence[int]) -> int:
    """Number of accepted proposals.

    choices[j] is the target's argmax after the current token and the first j proposals, so
    len(choices) == len(proposals) + 1; the step emits choices[: accepted + 1], the last one being
    the bonus token.
    """
    assert len(choices) == len(proposals) + 1, f"{len(choices)} choices, {len(proposals)} proposals"
    for place, proposal in enumerate(proposals):
        if proposal != choices[place]:
            return place
    return len(proposals)
