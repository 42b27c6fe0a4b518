"""The Domino head with gradients: hidden states and true previous tokens in, corrections out.

Teacher forcing: the GRU reads the tokens that the block should have proposed so far. For greedy
acceptance that is exact, since a later proposal counts only when all before it are right.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.draft_config import DraftConfig
from training.draft import Weights
from training.rows import Anchors, Rows, take

PREFIX = 1  # predictions that are never corrected: pure_draft_prefix_len
UP = "embed_proj.2.weight"  # bottleneck [E] -> correction of every token's logit


def previous_ids(rows: Rows, anchors: Anchors, block_size: int) -> Tensor:
    """[R, N, B]: the tokens at the block's own positions."""
    return take(rows.ids, anchors.positions(0, block_size))


def bottleneck(
    config: DraftConfig, weights: Weights, hidden: Tensor, previous: Tensor, embedding: Tensor
) -> Tensor:
    """hidden [R, N, B, H], previous [R, N, B] -> [R, N, B, E]; UP times it is the correction.

    Zero for the slots whose prediction is the base branch's alone.
    """
    assert config.domino is not None, "the draft has no Domino head"
    states = gru_states(weights, F.embedding(previous, embedding).to(hidden.dtype).flatten(0, 1))
    if not config.shift_label:  # slot k predicts token k: the state before it
        states = F.pad(states[:, :-1], (0, 0, 1, 0))
    states = states.view(*hidden.shape[:-1], -1)
    small = F.silu(F.linear(torch.cat([hidden, states], -1), weights["embed_proj.0.weight"]))
    first = PREFIX if config.shift_label else 1 + PREFIX
    corrected = torch.arange(config.block_size, device=hidden.device) >= first
    return small * corrected[:, None]


def gru_states(weights: Weights, tokens: Tensor) -> Tensor:
    """tokens [n, B, H] -> state after each of them [n, B, G], from zero."""
    into, over = weights["prefix_gru.weight_ih_l0"], weights["prefix_gru.weight_hh_l0"]
    state = tokens.new_zeros(len(tokens), over.shape[1])
    states = []
    for token in tokens.unbind(1):
        state = torch.gru_cell(token, state, into, over)
        states.append(state)
    return torch.stack(states, 1)
