"""The demo's verdict, on made-up answers and on the real thing."""

import json
from dataclasses import replace

import pytest

from domino_cli.__main__ import main
from domino_cli.ask import Answer
from domino_cli.demo import same
from domino_cli.demo_report import Arm, as_json, as_table
from domino_client import Completion, Speculation, Timings


def answer(token_ids: tuple[int, ...], *, steps: int = 4, total_s: float = 2.0) -> Answer:
    speculation = Speculation(
        mode="domino",
        width=16,
        verify_steps=steps,
        plain_steps=0,
        proposed_tokens=15 * steps,
        accepted_tokens=0,
        accepted_by_position=(),
        step_tokens=len(token_ids),
    )
    completion = Completion(
        request_id="r",
        text="",
        token_ids=token_ids,
        finish_reason="length",
        stop_token_id=None,
        prompt_tokens=1,
        completion_tokens=len(token_ids),
        speculation=speculation,
        timings=Timings(queue_ns=0, first_token_ns=0, total_ns=0, verify_ns=0, draft_ns=0),
    )
    return Answer(completion=completion, ttft_s=0.1, total_s=total_s)


REFERENCE = Arm(mode="ar", answers=(answer((1, 2, 3)), answer((4, 5, 6))), identical=(True, True))


def test_one_other_token_makes_the_prompt_not_identical() -> None:
    """Prevents a demo that shows speed and hides that the output changed."""
    other = Arm(mode="domino", answers=(answer((1, 2, 3)), answer((4, 5, 7))))
    other = replace(other, identical=same(other, REFERENCE))
    assert other.identical == (True, False)
    assert as_table([REFERENCE, other], 2).splitlines()[-1].split()[-3:] == ["yes", "NO", "NO"]
    assert as_json([REFERENCE, other], ["a", "b"])["identical"] is False


def test_figures_are_totals_over_the_prompts() -> None:
    """Prevents averages of ratios, which weigh a short answer like a long one."""
    arm = Arm(
        mode="domino",
        answers=(answer((1,) * 10, steps=2, total_s=1.0), answer((1,) * 2, steps=2, total_s=5.0)),
    )
    assert arm.acceptance_length == 3.0
    assert arm.tokens_per_s == 2.0


@pytest.mark.embedded
def test_demo_answers_identically_in_all_three_modes(capsys: pytest.CaptureFixture[str]) -> None:
    """Prevents a broken first command: three real services, real models, one verdict."""
    code = main(["demo", "--max-tokens", "16", "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    report = json.loads(printed.out)
    assert report["identical"] is True
    assert [mode["mode"] for mode in report["modes"]] == ["ar", "dflash", "domino"]
    plain, _, domino = report["modes"]
    assert (plain["width"], plain["acceptance_length"]) == (1, 1.0)
    assert domino["acceptance_length"] > 1.0
    assert "Paris" in plain["answers"][0]["text"]
