"""Speculation's metrics against figures worked out by hand."""

from serving.metrics import INSTRUMENTS
from verify_service.speculation import AcceptanceLength, StepCounts

# (proposed, accepted) of six steps: acceptance lengths 4, 1, 3 and 2 of the drafted ones.
STEPS = [(3, 3), (3, 0), (3, 2), (2, 1), (0, 0), (0, 0)]


def counted() -> StepCounts:
    counts = StepCounts()
    for proposed, accepted in STEPS:
        counts.add(proposed, accepted)
    return counts


def test_positions_and_plain_steps_as_vllm_defines_them() -> None:
    """Prevents per-position rates that exceed 1, and plain steps that pass for drafted ones."""
    counts = counted()
    assert counts.by_position() == {("0",): 3, ("1",): 2, ("2",): 1}
    assert counts.plain() == 2
    assert sum(counts.drafted().values()) == 4


def test_acceptance_length_includes_the_bonus_token() -> None:
    """Prevents a mean that is one too low: vLLM's is 1 + accepted / drafts, here 1 + 6 / 4."""
    length = AcceptanceLength("test_acceptance_length", "of a test", counted())
    del INSTRUMENTS["test_acceptance_length"]
    found = length.spread()
    assert list(found.counts[:5]) == [1, 1, 1, 1, 0]
    assert found.sum / sum(found.counts) == 1 + 6 / 4
