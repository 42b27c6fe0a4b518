"""The recorded tiny head of f3, what it borrows from its target, inputs and outputs."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from domino_kernels.rollout_weights import DominoWeights

GOLDEN = Path(__file__).parents[1] / "golden"


def recorded_head() -> tuple[DominoWeights, Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Recorded head, lm_head, embedding, block hidden rows [3, 7, H], current [3], outputs."""
    folder = GOLDEN / "f3_domino_rollout_shift"
    head = load_file(folder / "model.safetensors")
    inputs = load_file(folder / "inputs.safetensors")
    target = load_file(GOLDEN / "target_qwen3_tiny" / "model.safetensors")
    weights = DominoWeights(
        w_ih=head["prefix_gru.weight_ih_l0"],
        w_hh=head["prefix_gru.weight_hh_l0"],
        w1=head["embed_proj.0.weight"],
        w2=head["embed_proj.2.weight"],
    )
    lm_head, embedding = target["lm_head.weight"], target["model.embed_tokens.weight"]
    expected = load_file(folder / "expected.safetensors")
    hidden, current = inputs["block_hidden"][:, :7], inputs["current"]
    return weights, lm_head, embedding, hidden, current, expected


def tied(weights: DominoWeights) -> DominoWeights:
    """All tokens score alike, to the bit: one product each, in whatever order a row is summed."""
    w2 = torch.zeros_like(weights.w2)
    w2[:, 3] = 1.5
    return replace(weights, w2=w2)
