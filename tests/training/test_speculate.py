"""Batched draft and verify: the target's own text, and the acceptance that the services reach."""

from pathlib import Path

import pytest

from domino_cli.in_process import collect
from tests.engines import MODES, engines
from tests.recorded_models import BLOCK, DFLASH, DOMINO_NOSHIFT, DOMINO_SHIFT, PROMPTS, TARGET
from tests.training import tiny
from training.errors import TrainingError
from training.speculate import Answer, Speculation, acceptance_length, accepted_shares, loops

NEW = 40


@pytest.mark.parametrize("draft", [DFLASH, DOMINO_SHIFT, DOMINO_NOSHIFT], ids=lambda p: p.name)
def test_tokens_and_steps_are_those_of_the_services(draft: Path) -> None:
    """An evaluation that differs from serving measures another draft than the one that ships."""
    speculation = Speculation(tiny.target(), draft)
    answers = speculation.answers(PROMPTS, width=BLOCK, new=NEW, stops=set())
    mode = MODES["dflash" if draft == DFLASH else "domino"]
    with engines(TARGET, draft, int8=False) as services:
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            events = services.submit(prompt, NEW, mode=mode, draft_tokens=BLOCK - 1)
            tokens, complete = collect(events)
            assert answer.tokens == tokens
            assert len(answer.accepted) == complete.speculation.verify_steps


def test_other_taps_are_refused() -> None:
    """Features of other layers only lower the acceptance, and nothing else shows it."""
    with pytest.raises(TrainingError, match="taps"):
        Speculation(tiny.target((1, 2, 3)), DOMINO_SHIFT)


def test_a_stop_id_ends_an_answer() -> None:
    """Tokens behind the end would count as accepted."""
    speculation = Speculation(tiny.target(), DOMINO_SHIFT)
    free = speculation.answers(PROMPTS, width=BLOCK, new=NEW, stops=set())
    stop = free[1].tokens[12]
    ended = speculation.answers(PROMPTS, width=BLOCK, new=NEW, stops={stop})
    assert ended[1].tokens == free[1].tokens[: free[1].tokens.index(stop) + 1]


def test_arithmetic_of_acceptance() -> None:
    """Total tokens over total steps, not a mean of means; the first token is no step's."""
    answers = [Answer([1, 2, 3, 4, 5], [2, 0]), Answer([1, 2, 3], [0, 0])]
    assert acceptance_length(answers) == 6 / 4
    assert accepted_shares(answers, 3) == [0.25, 0.25, 0.0]
    assert loops(Answer([1, 2, 3, 4] * 10)) and not loops(Answer(list(range(40))))
