"""The arithmetic over samples, against numbers worked out by hand."""

import pytest

from benchmarks.sample import (
    Prompt,
    Sample,
    acceptance_length,
    accepted_shares,
    identical_share,
    median_ratio,
    median_ttft_s,
    throughput,
)


def sample(
    index: int, tokens: int, total_s: float, *, last: int = 0, **speculation: object
) -> Sample:
    return Sample(
        arm="domino",
        width=4,
        prompt=Prompt(workload="gsm8k", index=index, text=""),
        token_ids=(*range(tokens - 1), last),
        ttft_s=total_s / 10,
        total_s=total_s,
        **speculation,  # type: ignore[arg-type]
    )


def test_throughput_weighs_every_token_alike() -> None:
    """Prevents a mean of rates: 20 tokens in 1 s and 10 in 4 s are 6 tokens/s, not 11.25."""
    assert throughput([sample(0, 20, 1.0), sample(1, 10, 4.0)]) == 6.0


def test_ratios_are_paired_by_prompt_and_their_median_taken() -> None:
    """Prevents pairing by order, and one disturbed prompt deciding the figure.

    tokens/s 10, 40, 20 over 10, 20, 40: ratios 1, 2, 0.5.
    """
    mine = [sample(0, 10, 1.0), sample(1, 40, 1.0), sample(2, 20, 1.0)]
    reference = [sample(2, 40, 1.0), sample(0, 10, 1.0), sample(1, 20, 1.0)]
    assert median_ratio(mine, reference) == 1.0
    assert median_ratio(mine[:2], reference[1:]) == 1.5


def test_acceptance_length_is_all_tokens_over_all_steps() -> None:
    """Prevents a mean of means: 12 tokens in 4 steps and 3 in 3 are 15 / 7."""
    samples = [
        sample(0, 13, 1.0, verify_steps=4, step_tokens=12, accepted_by_position=(4, 3, 1)),
        sample(1, 4, 1.0, verify_steps=3, step_tokens=3, accepted_by_position=()),
    ]
    assert acceptance_length(samples) == pytest.approx(15 / 7)
    assert accepted_shares(samples) == pytest.approx([4 / 7, 3 / 7, 1 / 7])


def test_without_verify_steps_decoding_was_plain() -> None:
    """Prevents a division by zero for transformers, which reports no steps."""
    assert acceptance_length([sample(0, 5, 1.0)]) == 1.0
    assert accepted_shares([sample(0, 5, 1.0)]) == []


def test_identical_means_every_token_of_the_same_prompt() -> None:
    """Prevents a share that counts lengths, or answers to other prompts."""
    reference = [sample(0, 5, 1.0), sample(1, 5, 1.0)]
    assert identical_share([sample(1, 5, 2.0), sample(0, 5, 2.0, last=9)], reference) == 0.5
    assert identical_share([sample(1, 5, 2.0), sample(0, 6, 2.0)], reference) == 0.5
    with pytest.raises(AssertionError, match="different prompts"):
        identical_share([sample(0, 5, 1.0), sample(2, 5, 1.0)], reference)


def test_ttft_is_the_median() -> None:
    """Prevents the first, cold prompt from deciding it."""
    assert median_ttft_s([sample(i, 5, s) for i, s in enumerate((90.0, 1.0, 2.0))]) == 0.2
