"""DSpark's heads with gradients: hidden states and true previous tokens in, small vectors out.

Teacher forcing, as for Domino: W1 reads the tokens that the block should have proposed so far. The
bias is W2 times the small vector, so that the losses of both heads share one form.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.draft_config import DraftConfig
from serving.draft_tensors import CONFIDENCE, GATE, JOINT, W1
from training.draft import Weights


def markov(
    config: DraftConfig, weights: Weights, hidden: Tensor, previous: Tensor
) -> tuple[Tensor, Tensor | None]:
    """hidden [R, N, B, H], previous [R, N, B]: the token at each slot -> small [R, N, B, rank] and
    the confidences [R, N, B] before the sigmoid, where there is such a head."""
    head = config.dspark
    assert head is not None, "the draft has no DSpark head"
    embedded = F.embedding(previous, weights[W1])
    small = embedded
    if head.kind == "gated":
        gate = _linear(weights, GATE, torch.cat([hidden, embedded], -1))
        small = embedded * torch.sigmoid(gate)
    if head.kind == "rnn":
        small = _recurrent(weights, hidden.flatten(0, 1), embedded.flatten(0, 1))
        small = small.view_as(embedded)
    if not head.confidence:
        return small, None
    read = torch.cat([hidden, embedded], -1) if head.reads_markov else hidden
    return small, _linear(weights, CONFIDENCE, read)[..., 0]


def _recurrent(weights: Weights, hidden: Tensor, embedded: Tensor) -> Tensor:
    """hidden [n, B, H], embedded [n, B, rank] -> [n, B, rank], the state from zero."""
    state = torch.zeros_like(embedded[:, 0])
    found = []
    for h, e in zip(hidden.unbind(1), embedded.unbind(1), strict=True):
        gate, new, out = _linear(weights, JOINT, torch.cat([state, e, h], -1)).chunk(3, -1)
        gate = torch.sigmoid(gate)
        state = gate * state + (1 - gate) * torch.tanh(new)
        found.append(torch.tanh(out))
    return torch.stack(found, 1)


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[name + "weight"], weights[name + "bias"])
