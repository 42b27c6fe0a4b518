"""Logits in, token ids out: temperature, top-k, top-p, min-p, then one draw by inverse CDF.

Everything is float64, row by row, and the random numbers depend on (seed, position) only: the same
token whatever batch, width or retry it is chosen in. So speculation keeps the distribution: the
target is drawn at each verified position and a proposal is kept while it equals the draw.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from domino_serve.v1 import sampling_pb2
from serving.sampling import is_greedy

FEW = 1024  # candidates that nearly always hold the top-p mass; sorting a vocabulary is slow
ROWS = 64  # rows at once, which bounds the float64 copies of the logits
# splitmix64's constants as signed 64-bit numbers.
GOLDEN, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are drawn; 0, 1 and 0 switch top_k, top_p and min_p off."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int

    @classmethod
    def of(cls, sampling: sampling_pb2.Sampling) -> Self | None:
        """A checked message's parameters; None when they leave the argmax only."""
        if is_greedy(sampling):
            return None
        return cls(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
            min_p=sampling.min_p,
            seed=sampling.seed,
        )


def knobs_of(sampling: Sequence[SamplingParams | None]) -> NDArray[np.float64]:
    """[n, 5], as domino_kernels.gpu.draw takes them; a temperature of 0 takes the highest logit."""
    knobs = np.zeros((len(sampling), 5))
    seeds = knobs.view(np.int64)[:, 4]
    for row, params in enumerate(sampling):
        if params:
            knobs[row, :4] = params.temperature, params.top_k, params.top_p, params.min_p
            seeds[row] = params.seed
    return knobs


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> Tensor:
    """logits [n, vocab] -> ids [n]; positions[i] is where the chosen token will stand.

    Raises FloatingPointError when a row has no number to choose by.
    """
    found = []
    for first in range(0, len(params), ROWS):
        rows = slice(first, first + ROWS)
        seeds = torch.tensor([p.seed for p in params[rows]], device=logits.device)
        places = torch.tensor(positions[rows], device=logits.device)
        found.append(draw(warp(logits[rows], params[rows]), uniforms(seeds, places)))
    return torch.cat(found)


def warp(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """logits [n, vocab] -> weights [n, vocab] float64: probabilities, the largest scaled to 1."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    logits = logits.double()
    scaled = logits - logits.amax(-1, keepdim=True)
    weights = (scaled / column([p.temperature for p in params])).exp()
    top_k = [p.top_k if p.top_k < logits.shape[-1] else 0 for p in params]
    limited = [i for i, p in enumerate(params) if top_k[i] or p.top_p < 1]
    if limited:
        top_p = [params[i].top_p if params[i].top_p < 1 else math.inf for i in limited]
        counts = column([top_k[i] for i in limited]).long()
        weights[limited] = _most_probable(weights[limited], counts, column(top_p))
    return torch.where(weights >= column([p.min_p for p in params]), weights, 0.0)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """weights [n, vocab], uniforms [n] in [0, 1) -> ids [n]: where the CDF first exceeds its u."""
    cdf = weights.cumsum(-1)
    total = cdf[:, -1:]
    if not (total > 0).all():
        raise FloatingPointError("the target's logits are not numbers")
    return torch.searchsorted(cdf, uniforms[:, None] * total, right=True)[:, 0]


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """int64 [n], int64 [n] -> float64 [n] in [0, 1).

    Number `position` of the splitmix64 generator whose state starts at mix(seed), upper 53 bits.
    """
    bits = _mix(_mix(seeds) + (positions + 1) * GOLDEN)
    return _shift(bits, 11).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    """splitmix64's output function; int64 products wrap as unsigned ones do."""
    z = (z ^ _shift(z, 30)) * MIX_1
    z = (z ^ _shift(z, 27)) * MIX_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _most_probable(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zeroes what top-k [n, 1] (0: off) and then top-p [n, 1] (infinite: off) leave out.

    Tokens as probable as the k-th stay, as in transformers; among tokens equal at the border of
    top-p those of lower id stay.
    """
    vocab = weights.shape[-1]
    last, ties, found = _cut(weights, top_k, top_p, min(FEW, vocab))
    if not found.all():
        rest = ~found[:, 0]
        last[rest], ties[rest], _ = _cut(weights[rest], top_k[rest], top_p[rest], vocab)
    equal = weights == last
    keep = (weights > last) | (equal & (equal.cumsum(-1) <= ties))
    return torch.where(keep, weights, 0.0)


def _cut(weights: Tensor, top_k: Tensor, top_p: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Least weight kept, how many equal to it are kept, and whether `size` candidates told so."""
    values = weights.topk(size, dim=-1).values
    kth = torch.where(top_k > 0, values.gather(-1, (top_k - 1).clamp(0, size - 1)), 0.0)
    # By cumsum, because the order of summation of `sum` depends on the number of rows.
    total = torch.where(weights >= kth, weights, 0.0).cumsum(-1)[:, -1:]
    mass_before = F.pad(values.cumsum(-1)[:, :-1], (1, 0))
    inside = (values >= kth) & (mass_before < top_p * total)
    count = inside.sum(-1, keepdim=True)
    last = values.gather(-1, count - 1)
    ties = count - (values > last).sum(-1, keepdim=True)
    found = (count < size) & (top_k <= size)
    return last, ties, found | (size == weights.shape[-1])
