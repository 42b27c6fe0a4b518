"""Optimizers and schedules: AdamW for every weight, or Muon for the matrices of the backbone."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

# Gates, the vocabulary's matrix and vectors are no matrices to orthogonalise.
NOT_MUON = ("prefix_gru.", "embed_proj.2.", "markov_head.", "confidence_head.")
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al.: a quintic that drives spectra to 1
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update has all singular values near 1, scaled to AdamW's usual size.

    Matrices of one shape are orthogonalised together.
    """

    def __init__(self, weights: Iterable[Tensor], lr: Tensor, momentum: float = 0.95) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._step(weights, group["lr"], group["momentum"])

    def _step(self, weights: list[Tensor], lr: Tensor, momentum: float) -> None:
        updates = []
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            assert weight.grad is not None
            state["momentum"].lerp_(weight.grad, 1 - momentum)
            updates.append(torch.lerp(weight.grad, state["momentum"], momentum))
        scale = 0.2 * math.sqrt(max(weights[0].shape))
        for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
            weight.sub_(update * (lr * scale))


def orthogonal(matrices: Tensor) -> Tensor:
    """matrices [n, a, b] -> the nearest with orthonormal rows or columns, roughly; float32."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = (matrices.transpose(1, 2) if tall else matrices).float()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    a, b, c = NEWTON_SCHULZ
    for _ in range(ROUNDS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return (x.transpose(1, 2) if tall else x).float()


def make_optimizers(
    kind: Literal["adamw", "muon"],
    masters: Mapping[str, Tensor],
    *,
    betas: tuple[float, float],
    weight_decay: float,
) -> list[torch.optim.Optimizer]:
    """Every weight in exactly one; the learning rate is a tensor of each group, set by the step."""
    device = next(iter(masters.values())).device
    muon = [
        w
        for n, w in masters.items()
        if kind == "muon" and w.dim() == 2 and not n.startswith(NOT_MUON)
    ]
    chosen = {id(w) for w in muon}
    rest = [w for w in masters.values() if id(w) not in chosen]
    graph = device.type == "cuda"
    adamw = torch.optim.AdamW(
        rest,
        lr=torch.zeros((), device=device),
        betas=betas,
        weight_decay=weight_decay,
        capturable=graph,
        fused=graph,
    )
    return [adamw, *([Muon(muon, torch.zeros((), device=device))] if muon else [])]


def learning_rate(
    step: int,
    total: int,
    *,
    peak: float,
    warmup: float,
    schedule: Literal["cosine", "wsd"],
    floor: float,
) -> float:
    """Rate of the step after `step` completed ones: linear warm-up over a share of the total,
    then cosine to floor * peak, or flat until the last fifth and cosine there."""
    ramp = max(1, round(total * warmup))
    if step < ramp:
        return peak * (step + 1) / ramp
    begin = ramp if schedule == "cosine" else max(ramp, round(total * 0.8))
    done = min(max(0.0, (step - begin) / max(1, total - begin)), 1.0)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
