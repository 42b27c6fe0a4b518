"""Warping against transformers' processors, the random numbers against their definition."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from domino_serve.v1.sampling_pb2 import Sampling
from verify_service.sampling import FEW, SamplingParams, draw, sample, uniforms, warp

VOCAB = 3 * FEW  # more than the candidates tried first
MASK_64 = 2**64 - 1


def logits(rows: int, vocab: int, seed: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def probabilities(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def oracle(scores: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities after transformers' warpers, in the order in which `generate` applies them."""
    warpers: list[Any] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    warped: Tensor = LogitsProcessorList(warpers)(torch.zeros(1, 1).long(), scores.double())
    return warped.softmax(-1)


any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 40, FEW - 1, FEW, FEW + 1, VOCAB - 1, VOCAB, VOCAB + 1]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    seed=st.integers(0, 2**63 - 1),
)


@settings(max_examples=60, deadline=None)
@given(params=st.lists(any_params, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_warping_equals_transformers(params: list[SamplingParams], seed: int) -> None:
    """Another order, border or renormalisation changes what users get for the same settings."""
    scores = logits(len(params), VOCAB, seed, spread=0.5 + seed % 5)
    ours = probabilities(warp(scores, params))
    for row, own in enumerate(params):
        expected = oracle(scores[row : row + 1], own)[0]
        assert torch.allclose(ours[row], expected, rtol=0, atol=1e-9), own
        assert torch.equal(ours[row] > 0, expected > 0), own


@settings(max_examples=40, deadline=None)
@given(params=st.lists(any_params, min_size=2, max_size=90), seed=st.integers(0, 1000))
def test_a_token_does_not_depend_on_the_rows_beside_it(
    params: list[SamplingParams], seed: int
) -> None:
    """A sum in another order per batch size would let batch mates change a completion."""
    scores = logits(len(params), VOCAB, seed)
    positions = list(range(len(params)))
    together = sample(scores, params, positions)
    for row in range(0, len(params), 7):
        alone = sample(scores[row : row + 1], params[row : row + 1], positions[row : row + 1])
        assert torch.equal(alone, together[row : row + 1])


def test_ties_at_the_border_of_top_p_go_to_the_lower_id() -> None:
    """An unstable sort would make a completion depend on the library's mood."""
    scores = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]])
    half = SamplingParams(temperature=1.0, top_p=0.5, seed=0)
    assert (warp(scores, [half]) > 0).tolist() == [[False, True, True, False, False]]
    flat = torch.zeros(1, VOCAB)
    kept = warp(flat, [half])[0] > 0
    assert torch.equal(kept, torch.arange(VOCAB) < VOCAB // 2)


def splitmix64(state: int) -> int:
    """Output of Vigna's generator for a state that is already advanced, in plain integers."""
    z = state & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)


def test_the_reference_is_splitmix64() -> None:
    """The published first outputs for seed 1234567."""
    outputs = [splitmix64(1234567 + n * 0x9E3779B97F4A7C15) for n in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**40))
def test_random_numbers_are_what_is_documented(seed: int, position: int) -> None:
    """Another generator would change every seeded completion that users have recorded."""
    state = splitmix64(seed) + (position + 1) * 0x9E3779B97F4A7C15
    expected = float(Fraction(splitmix64(state) >> 11, 2**53))
    got = uniforms(torch.tensor([seed]), torch.tensor([position]))
    assert got.tolist() == [expected]


def test_random_numbers_are_uniform_and_independent() -> None:
    """Neighbouring seeds or positions that move together would correlate completions."""
    seeds, positions = torch.meshgrid(torch.arange(512), torch.arange(512), indexing="ij")
    u = uniforms(seeds.flatten(), positions.flatten()).view(512, 512)
    counts = torch.histc(u, 64, 0, 1)
    chi_square = float(((counts - 4096) ** 2 / 4096).sum())
    assert 30 < chi_square < 110  # 63 degrees of freedom; both ends have p < 0.0005
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1])):
        pairs = torch.stack((a.flatten(), b.flatten()))
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.01


def test_the_draw_is_the_inverse_of_the_distribution_function() -> None:
    """An off-by-one there would draw tokens of no probability."""
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    u = torch.tensor([0.0, 0.25 - 1e-16, 0.25, 1 - 2**-53], dtype=torch.float64)
    assert draw(weights, u).tolist() == [1, 1, 3, 3]


def test_logits_that_are_no_numbers_end_the_request() -> None:
    """NaN compares as false everywhere and would come out as some id."""
    with pytest.raises(FloatingPointError, match="not numbers"):
        sample(torch.full((1, 8), torch.nan), [SamplingParams(temperature=1.0, seed=1)], [0])


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0, "top_p": 0.5}, {"top_k": 1}], ids=str)
def test_what_leaves_one_token_is_greedy(fields: dict[str, Any]) -> None:
    """Greedy output must not depend on the way it was asked for."""
    message = Sampling(**{"temperature": 1.0 if "top_k" in fields else 0.0} | fields)
    assert SamplingParams.of(message) is None
    assert SamplingParams.of(Sampling(temperature=0.5, seed=3)) == SamplingParams(
        temperature=0.5, seed=3
    )
