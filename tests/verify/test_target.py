"""The target model against transformers: logits, taps and plain greedy decoding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from domino_cli.in_process import collect
from domino_kernels.attention import Batch, Span
from serving.target_config import open_target
from tests.engines import engines
from tests.float_error import assert_as_exact_as, exact_logits
from tests.tiny_models import FAMILIES, VOCAB, write_target
from verify_service.target import Target

CPU = torch.device("cpu")
LENGTH = 240  # scaled rotary embeddings were made for 64 positions and extended to 256


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, transformers' model) of each family."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_target(request.param, folder)


IDS = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def logits_and_taps(folder: Path) -> tuple[Tensor, Sequence[Tensor]]:
    """Ours of IDS, every layer tapped."""
    checkpoint, config = open_target(folder)
    layers = tuple(range(config.num_layers))
    target = Target(config, checkpoint, dtype=torch.float32, device=CPU, taps=layers)
    pages = range(LENGTH // 16)
    batch = Batch([Span(start=0, count=LENGTH, pages=pages)], 16, CPU)
    x, taps = target.forward(IDS, batch, target.new_kv(len(pages), 16))
    return target.logits(x), taps


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_are_within_1e_4_of_transformers(family: str, tmp_path: Path) -> None:
    """A rope, a bias or an epsilon that is slightly off shows in the fourth digit."""
    oracle = write_target(family, tmp_path, spread=0.2)
    with torch.inference_mode():
        expected = oracle(IDS[None]).logits[0]
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits_and_taps(tmp_path)[0], expected, atol=1e-4, rtol=0)


def test_logits_and_taps_equal_transformers(model: tuple[Path, Any]) -> None:
    """Bias, qk-norm, tied head or rope read wrongly shift logits; a wrong tap costs acceptance.

    These weights are so large that the last bits grow: transformers' own float32 is as far off.
    """
    folder, oracle = model
    logits, taps = logits_and_taps(folder)
    with torch.inference_mode():
        expected = oracle(IDS[None], output_hidden_states=True)
        assert_as_exact_as(expected.logits[0], exact_logits(oracle, IDS), logits)
    for layer in range(len(taps) - 1):
        torch.testing.assert_close(
            taps[layer], expected.hidden_states[layer + 1][0], atol=1e-3, rtol=1e-5
        )


def test_plain_greedy_equals_transformers_generate(model: tuple[Path, Any]) -> None:
    """The plain path is the reference of every exactness test, so it needs an oracle of its own."""
    folder, oracle = model
    prompts = [[7, 50, 3], list(range(30, 71)), [9]]
    with engines(folder, None, prefill_tokens=16) as running:
        events = [running.submit(prompt, 40) for prompt in prompts]
        ours = [collect(event)[0] for event in events]
    for prompt, ids in zip(prompts, ours, strict=True):
        whole = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert ids == whole[0, len(prompt) :].tolist()
