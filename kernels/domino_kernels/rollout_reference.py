"""The Domino greedy rollout in plain torch: hidden rows in, proposals and every score out.

It states the arithmetic the kernels are held to: sums run in `accumulate`, and only two values are
rounded to the weights' dtype, the GRU state and the bottleneck where they enter a product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .rollout_weights import DominoWeights


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutTrace:
    """ids [B, n] int64; scores [B, n, V] in the accumulation dtype."""

    ids: Tensor
    scores: Tensor


def lowest_argmax(scores: Tensor) -> Tensor:
    """Index of the maximum over the last dim, the lowest on ties."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    best = scores.amax(-1, keepdim=True)
    return torch.where(scores == best, places, scores.shape[-1]).amin(-1)


def rollout_reference(
    weights: DominoWeights,
    lm_head: Tensor,
    embedding: Tensor,
    hidden: Tensor,
    current: Tensor,
    *,
    accumulate: torch.dtype = torch.float32,
    forced: Tensor | None = None,
    pool: int = 0,
) -> RolloutTrace:
    """hidden [B, n, H], current [B] -> n proposals a request and the scores each came from.

    `forced` [B, n] are the tokens to follow instead of the argmax (scores of another's chain).
    `pool` > 0 keeps, from the second token on, only the K tokens whose best base score is highest.
    """
    dtype, gru = lm_head.dtype, weights.gru_dim
    w_ih, w_hh, w1, w2 = (w.to(accumulate) for w in _tensors(weights))
    base = hidden.to(dtype).to(accumulate) @ lm_head.to(accumulate).T
    from_hidden = hidden.to(dtype).to(accumulate) @ w1[:, :-gru].T
    state = torch.zeros(len(current), gru, dtype=accumulate, device=hidden.device)
    token, scores, ids = current, base[:, 0], []
    outside = _outside_pool(base, pool)
    trace = []
    for j in range(hidden.shape[1]):
        state = _gru(embedding[token].to(accumulate), state, w_ih, w_hh, dtype)
        if j > 0:
            pre = from_hidden[:, j] + state.to(dtype).to(accumulate) @ w1[:, -gru:].T
            bottleneck = (pre * torch.sigmoid(pre)).to(dtype).to(accumulate)
            scores = (base[:, j] + bottleneck @ w2.T).masked_fill(outside, -torch.inf)
        ids.append(lowest_argmax(scores))
        trace.append(scores)
        token = ids[-1] if forced is None else forced[:, j]
    return RolloutTrace(ids=torch.stack(ids, 1), scores=torch.stack(trace, 1))


def _tensors(weights: DominoWeights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return weights.w_ih, weights.w_hh, weights.w1, weights.w2


def _outside_pool(base: Tensor, pool: int) -> Tensor:
    outside = torch.zeros_like(base[:, 0], dtype=torch.bool)
    if 0 < pool < base.shape[-1] and base.shape[1] > 1:
        inside = base[:, 1:].amax(1).topk(pool).indices
        outside = ~outside.scatter(1, inside, True)
    return outside


def _gru(x: Tensor, state: Tensor, w_ih: Tensor, w_hh: Tensor, dtype: torch.dtype) -> Tensor:
    from_token = (x @ w_ih.T).chunk(3, -1)
    from_state = (state.to(dtype).to(x.dtype) @ w_hh.T).chunk(3, -1)
    reset = torch.sigmoid(from_token[0] + from_state[0])
    update = torch.sigmoid(from_token[1] + from_state[1])
    new = torch.tanh(from_token[2] + reset * from_state[2])
    return (1 - update) * new + update * state
