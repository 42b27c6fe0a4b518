"""Generated Domino heads at a target's sizes, drawn to match what the trained embedded draft shows.

Measured on models/smollm2-135m-domino-b16 (V 49152, H 576, G 256, E 128) over 544 blocks of real
text: W2's mean row, its centred singular values, base-logit spread, bottleneck pre-activations.
`flat=True` draws W2 without any structure (same row norms). Nothing here says how good a draft is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from domino_kernels.rollout_weights import DominoWeights

MEAN_ROW_NORM = 4.43
# centred singular values of W2 over sqrt(V), at these fractions of E
KNOTS = (0.0, 0.008, 0.016, 0.023, 0.031, 0.055, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
VALUES = (0.866, 0.500, 0.308, 0.278, 0.244, 0.209, 0.150, 0.104, 0.087, 0.076, 0.061, 0.040)
BASE_STD, PRE_MEAN, PRE_FROM_HIDDEN_STD, PRE_FROM_STATE_STD = 2.6, -2.18, 2.04, 2.82
GATE_STD, STATE_RMS, STATE_GATE_STD = 0.61, 0.37, 0.90


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """A target and its head: vocabulary V, hidden H, GRU G, bottleneck E."""

    vocab: int
    hidden: int
    gru: int = 1024
    bottleneck: int = 256


QWEN3_8B = Shapes(vocab=151936, hidden=4096)
QWEN36_27B = Shapes(vocab=248320, hidden=5120)


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """A head with its target's lm_head [V, H] and embedding [V, H], and a maker of inputs."""

    weights: DominoWeights
    lm_head: Tensor
    embedding: Tensor
    common: Tensor

    def inputs(self, batch: int, proposals: int, seed: int) -> tuple[Tensor, Tensor]:
        """hidden [batch, proposals, H] of unit rms and current [batch]."""
        rng = torch.Generator(self.lm_head.device).manual_seed(seed)
        vocab, hidden = self.lm_head.shape
        shape = (batch, proposals, hidden)
        noise = torch.randn(shape, generator=rng, device=rng.device)
        rows = 0.5 * self.common + 0.75**0.5 * noise
        current = torch.randint(vocab, (batch,), generator=rng, device=rng.device)
        return rows.to(self.lm_head.dtype), current


def generate(
    shapes: Shapes,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    flat: bool = False,
    seed: int = 0,
) -> Generated:
    """Draws one head; the same arguments give the same tensors on one device type."""
    rng = torch.Generator(device).manual_seed(seed)
    vocab, hidden, gru, bottleneck = shapes.vocab, shapes.hidden, shapes.gru, shapes.bottleneck

    def normal(rows: int, columns: int, std: float) -> Tensor:
        return torch.randn(rows, columns, generator=rng, device=device).mul_(std).to(dtype)

    common = torch.randn(hidden, generator=rng, device=device)
    common *= hidden**0.5 / common.norm()
    from_hidden = normal(bottleneck, hidden, PRE_FROM_HIDDEN_STD / (0.75 * hidden) ** 0.5).float()
    from_hidden += (2 * PRE_MEAN / hidden - from_hidden @ common[:, None] / hidden) * common
    from_state = normal(bottleneck, gru, PRE_FROM_STATE_STD / STATE_RMS / gru**0.5)
    weights = DominoWeights(
        w_ih=normal(3 * gru, hidden, GATE_STD),  # embedding rows have unit norm
        w_hh=normal(3 * gru, gru, STATE_GATE_STD / STATE_RMS / gru**0.5),
        w1=torch.cat([from_hidden.to(dtype), from_state], dim=1),
        w2=_to_vocab(vocab, bottleneck, rng, flat).to(dtype),
    )
    lm_head = normal(vocab, hidden, BASE_STD / hidden**0.5)
    embedding = normal(vocab, hidden, hidden**-0.5)
    return Generated(weights=weights, lm_head=lm_head, embedding=embedding, common=common)


def singular_values(bottleneck: int) -> Tensor:
    """Centred singular values over sqrt(V) for any E: the measured curve, its energy kept [E]."""
    place = torch.arange(bottleneck, dtype=torch.float64) / (bottleneck - 1)
    knots, values = torch.tensor(KNOTS).double(), torch.tensor(VALUES).double().log()
    right = torch.searchsorted(knots, place).clamp(1, len(KNOTS) - 1)
    part = (place - knots[right - 1]) / (knots[right] - knots[right - 1])
    curve = torch.lerp(values[right - 1], values[right], part).exp()
    kept: Tensor = curve * (128 / bottleneck) ** 0.5
    return kept.float()


def _to_vocab(vocab: int, bottleneck: int, rng: torch.Generator, flat: bool) -> Tensor:
    device = rng.device
    rows = torch.randn(vocab, bottleneck, generator=rng, device=device)
    scales = singular_values(bottleneck).to(device)
    if flat:
        energy = scales.square().sum() + MEAN_ROW_NORM**2
        rows *= (energy / bottleneck).sqrt()
        return rows
    square = torch.randn(bottleneck, bottleneck, generator=rng, device=device)
    turn = torch.linalg.qr(square).Q
    mean = torch.randn(bottleneck, generator=rng, device=device)
    rows *= scales
    rows = torch.mm(rows, turn)
    rows += mean * (MEAN_ROW_NORM / mean.norm())
    return rows
