"""Batched generation and features against transformers, row by row."""

import torch
from transformers import AutoModelForCausalLM

from tests.recorded_models import PROMPTS, TARGET
from tests.training import tiny
from training.generate import Generator, Limits


def test_answers_are_those_of_transformers() -> None:
    """A wrong mask, position or cache slot in a padded batch makes text the target never says."""
    oracle = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    limits = Limits(rows=8, prompt=64, new=20, straggling=0.0)
    generator = Generator(tiny.target(), limits, stop_ids=[256])
    for _ in range(2):  # the second time over a used cache
        answers = generator.answers(PROMPTS)
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            ids = torch.tensor([prompt])
            expected = oracle.generate(
                ids, max_new_tokens=20, do_sample=False, eos_token_id=256, pad_token_id=0
            )
            assert answer == expected[0, len(prompt) :].tolist()


def test_an_answer_ends_with_its_stop_id() -> None:
    """Tokens behind the end of the turn are no answer; without the end none would be learnt."""
    limits = Limits(rows=4, prompt=64, new=20, straggling=0.0)
    free = Generator(tiny.target(), limits, stop_ids=[256]).answers(PROMPTS)
    stop = free[0][3]
    ended = Generator(tiny.target(), limits, stop_ids=[stop]).answers(PROMPTS)
    assert ended[0] == free[0][: free[0].index(stop) + 1]
    assert all(stop not in answer[:-1] for answer in ended)


def test_features_are_outputs_of_the_tapped_layers() -> None:
    """One layer early or one token late, and acceptance falls without any error."""
    oracle = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    ids = torch.tensor([PROMPTS[1], PROMPTS[1][::-1]])
    x, taps = tiny.target((1, 2, 4)).prompt(ids)
    states = oracle(ids, output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer + 1] for layer in (1, 2, 4)], -1)
    torch.testing.assert_close(taps, expected, atol=2e-4, rtol=0)
    torch.testing.assert_close(tiny.target().normed(x), states[-1], atol=2e-4, rtol=0)
