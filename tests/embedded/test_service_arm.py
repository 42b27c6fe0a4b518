"""The benchmarks' way to the running services, on the embedded models."""

import os
import signal
from pathlib import Path

import pytest

from benchmarks.arms import ServiceArm
from benchmarks.sample import Prompt, acceptance_length
from domino_cli.errors import CommandError
from domino_cli.stack import Stack, StackConfig
from domino_client import Client

PROMPT = Prompt(workload="test", index=0, text="What is the capital of France?")


@pytest.mark.embedded
def test_a_plain_answer_is_no_sample_of_a_drafting_arm(
    embedded_target: Path, embedded_draft: Path
) -> None:
    """Prevents plain decoding's speed in Domino's column: without a draft requests still run.

    The plain answer is 8 tokens, the first of them from the prompt's own pass.
    """
    config = StackConfig(target=embedded_target, draft=embedded_draft, show_logs=False)
    with Stack(config) as stack, Client(stack.router_address) as client:
        plain = ServiceArm(client, "ar").answer(PROMPT, 24)
        domino = ServiceArm(client, "domino", width=4).answer(PROMPT, 24)
        assert (plain.verify_steps, plain.step_tokens) == (7, 7)
        assert domino.token_ids == plain.token_ids
        assert domino.attempts == 1
        assert 1.0 < acceptance_length([domino]) <= 4.0
        os.kill(stack.pids()["draft"], signal.SIGKILL)
        with pytest.raises(CommandError, match="domino: lost the draft 3 times in a row"):
            ServiceArm(client, "domino", width=4).answer(PROMPT, 24)
