"""Logits of the embedded target against transformers, over whole prompts."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from domino_kernels.attention import Batch, Span
from serving.target_config import open_target
from tests.float_error import assert_as_exact_as, exact_logits
from verify_service.target import Target

pytestmark = pytest.mark.embedded


@torch.inference_mode()
def test_logits_equal_transformers_over_whole_prompts(
    embedded_target: Path, prompts: list[list[int]]
) -> None:
    """Equal greedy tokens hide a rotary base, an epsilon or a norm that is slightly off."""
    oracle = AutoModelForCausalLM.from_pretrained(embedded_target, dtype=torch.float32).eval()
    checkpoint, config = open_target(embedded_target)
    target = Target(config, checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    for prompt in prompts:
        ids = torch.tensor(prompt)
        batch = Batch([Span(start=0, count=len(ids), pages=[0])], 128, torch.device("cpu"))
        x, _ = target.forward(ids, batch, target.new_kv(1, 128))
        assert_as_exact_as(oracle(ids[None]).logits[0], exact_logits(oracle, ids), target.logits(x))
