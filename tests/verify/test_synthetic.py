"""Synthetic acceptance: what it accepts, whom it tells, and that it cannot be had by accident."""

import pytest

from domino_cli.in_process import collect
from domino_serve.v1 import verify_pb2
from serving.options import OptionError
from tests.engines import MODES, engines
from tests.recorded_models import DOMINO_SHIFT, PROMPTS, TARGET
from tests.services.served import serve_verify
from verify_service.config import VerifyConfig
from verify_service.load import load
from verify_service.synthetic import parse_rates

DRAFT_TOKENS = 7


def test_a_length_is_spread_with_the_least_variance() -> None:
    """Prevents another convention than vLLM's: 3.25 is 1 + two sure positions + a quarter."""
    assert parse_rates("3.25", 4) == [1.0, 1.0, 0.25, 0.0]
    assert parse_rates("1", 3) == [0.0, 0.0, 0.0]
    assert parse_rates("4", 3) == [1.0, 1.0, 1.0]
    assert parse_rates("0.9,0.5,0.5", 3) == [0.9, 0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.5", "as a length must be in 1..4"),
        ("4.1", "as a length must be in 1..4"),
        ("nan", "as a length must be in 1..4"),
        ("much", "is no number and no list of rates"),
        ("0.9,0.8", "needs 3 rates, one a draft token"),
        ("0.5,0.6,0.1", "must be in 0..1 and not rise"),
        ("1.5,0.6,0.1", "must be in 0..1 and not rise"),
        ("0.5,0.4,-1", "must be in 0..1 and not rise"),
        ("0.5,nan,0.1", "must be in 0..1 and not rise"),
    ],
)
def test_impossible_acceptance_is_refused(text: str, reason: str) -> None:
    """Prevents rates that vLLM would refuse from meaning something here."""
    with pytest.raises(OptionError, match="benchmark_synthetic_acceptance") as error:
        parse_rates(text, 3)
    assert reason in str(error.value)


def test_it_is_refused_without_the_benchmark_flag_and_without_a_draft() -> None:
    """Prevents a server whose answers are not the target's from being started by one flag."""
    with pytest.raises(OptionError, match="add --benchmark"):
        VerifyConfig(target=TARGET, draft=DOMINO_SHIFT, benchmark_synthetic_acceptance="3")
    config = VerifyConfig(target=TARGET, benchmark=True, benchmark_synthetic_acceptance="3")
    with pytest.raises(OptionError, match="needs a draft"):
        load(config)


def synthetic(text: str) -> dict[str, object]:
    return {
        "width": DRAFT_TOKENS + 1,
        "benchmark": True,
        "benchmark_synthetic_acceptance": text,
    }


def test_steps_accept_what_is_pretended() -> None:
    """Prevents benchmarks at another acceptance than the one in their tables.

    A mean of 3 accepts exactly two proposals a step, whatever the models say; 61 tokens are the
    prompt's one and 20 steps of 3.
    """
    with engines(TARGET, DOMINO_SHIFT, **synthetic("3")) as both:  # type: ignore[arg-type]
        events = both.submit(PROMPTS[0], 61, mode=MODES["domino"], draft_tokens=DRAFT_TOKENS)
        ids, end = collect(events)
    assert len(ids) == 61
    assert end.speculation.verify_steps == 20
    assert list(end.speculation.accepted_by_position) == [20, 20, 0, 0, 0, 0, 0]


def test_rates_are_unconditional() -> None:
    """Prevents rates that multiply: position 2 at 0.5 is accepted in half of all steps.

    300 steps at one half deviate by 8.7; bounds of five times that.
    """
    rates = "0.5,0.5,0.5,0,0,0,0"
    accepted = [0, 0, 0]
    steps = 0
    with engines(TARGET, DOMINO_SHIFT, **synthetic(rates)) as both:  # type: ignore[arg-type]
        while steps < 300:
            events = both.submit(PROMPTS[2], 200, mode=MODES["domino"], draft_tokens=DRAFT_TOKENS)
            _, end = collect(events)
            steps += end.speculation.verify_steps
            for place in range(3):
                accepted[place] += end.speculation.accepted_by_position[place]
    assert accepted[0] == accepted[1] or accepted[0] - accepted[1] <= 3  # shortened last blocks
    assert abs(accepted[0] - steps / 2) < 5 * 8.7


def test_plain_requests_keep_the_targets_answer() -> None:
    """Prevents AR, the baseline, from being pretended too."""
    with engines(TARGET, None) as plain:
        expected, _ = collect(plain.submit(PROMPTS[1], 20))
    with engines(TARGET, DOMINO_SHIFT, **synthetic("3")) as both:  # type: ignore[arg-type]
        ids, _ = collect(both.submit(PROMPTS[1], 20))
    assert ids == expected


def test_everybody_who_asks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Prevents a table whose reader cannot know."""
    with serve_verify(**synthetic("2.5")) as verify:  # type: ignore[arg-type]
        target = verify.stub.GetTarget(verify_pb2.GetTargetRequest())
    assert target.synthetic_acceptance == "2.5"
    assert "SYNTHETIC ACCEPTANCE 2.5" in caplog.text
    with serve_verify() as real:
        assert real.stub.GetTarget(verify_pb2.GetTargetRequest()).synthetic_acceptance == ""
