"""Logits of the embedded target against transformers, over whole prompts."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from domino_kernels.attention import Batch, Span
from domino_kernels.native.library import library
from serving.target_config import open_target
from tests.float_error import assert_as_exact_as
from verify_service.target import Target

pytestmark = pytest.mark.embedded


@pytest.fixture
def torch_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The products that transformers uses too, so that only the model's own code is compared."""
    monkeypatch.setenv("DOMINO_NATIVE", "0")
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.fixture(scope="module")
def oracle(embedded_target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(embedded_target, dtype=torch.float32).eval()


def load(folder: Path) -> Target:
    checkpoint, config = open_target(folder)
    return Target(config, checkpoint, dtype=torch.float32, device=torch.device("cpu"))


@torch.inference_mode()
def our_logits(target: Target, ids: Tensor) -> Tensor:
    """ids [n <= 128] -> logits [n, vocab] in float32."""
    batch = Batch([Span(start=0, count=len(ids), pages=[0])], 128, torch.device("cpu"))
    x, _ = target.forward(ids, batch, target.new_kv(1, 128))
    return target.logits(x)


@pytest.mark.usefixtures("torch_products")
@torch.inference_mode()
def test_logits_are_within_1e_4_of_transformers(
    embedded_target: Path, oracle: Any, prompts: list[list[int]]
) -> None:
    """Equal greedy tokens hide a rotary base, an epsilon or a norm that is slightly off."""
    target = load(embedded_target)
    for prompt in prompts:
        ids = torch.tensor(prompt)
        ours, theirs = our_logits(target, ids), oracle(ids[None]).logits[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@torch.inference_mode()
def test_kernels_in_c_are_as_exact_as_transformers(
    embedded_target: Path, oracle: Any, prompts: list[list[int]]
) -> None:
    """They sum in another order, so each is compared with float64: a lossy exp would show."""
    target, exact = load(embedded_target), deepcopy(oracle).double()
    for prompt in prompts:
        ids = torch.tensor(prompt)
        theirs, wanted = oracle(ids[None]).logits[0], exact(ids[None]).logits[0]
        assert_as_exact_as(theirs, wanted, our_logits(target, ids))
