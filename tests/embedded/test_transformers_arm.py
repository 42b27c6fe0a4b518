"""The peer of the CPU benchmark, in its own process, on the embedded target."""

import os
from pathlib import Path

import pytest

from benchmarks.arms import TransformersArm
from benchmarks.sample import Prompt
from router.tokenizer import Tokenizer


@pytest.mark.embedded
def test_transformers_answers_the_same_prompt_and_stops_at_the_end_of_text(
    embedded_target: Path,
) -> None:
    """Prevents a peer that is slow because it gets another prompt or runs on after its answer, and
    one whose traceback is the end of a benchmark that was interrupted.

    2 is the end of a turn in this model's vocabulary.
    """
    prompt = Prompt(workload="test", index=0, text="What is the capital of France?")
    with TransformersArm(embedded_target, "float32", threads=None) as arm:
        found = arm.answer(prompt, max_tokens=24)
        cut = arm.answer(prompt, max_tokens=3)
        assert os.getsid(arm.pid) != os.getsid(0), "Ctrl-C is not for it"
    text = Tokenizer.load(embedded_target).decode(found.token_ids)
    assert text == "The capital of France is Paris."
    assert found.token_ids[-1] == 2
    assert cut.token_ids == found.token_ids[:3]
    assert 0 < found.ttft_s < found.total_s
