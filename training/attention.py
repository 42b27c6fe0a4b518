"""Attention of all blocks of a row over one shared context and each over itself.

Two groups of plain matrix products and one softmax: keys of other blocks are never touched, and
the context's keys are not copied for each block. Runs on any device and has gradients.
"""

import torch
from torch import Tensor

from training.visibility import Visible

MASKED = -1e30


def block_attention(
    q: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], found: Visible
) -> Tensor:
    """q [R, N, B, heads, d]; context k, v [R, S, kv, d]; block k, v [R, N, B, kv, d].

    Returns [R, N, B, heads * d].
    """
    rows, count, size, heads, dim = q.shape
    kv = context[0].shape[2]
    # [R, kv, N, group, B, d]: queries of one key head together
    q = q.view(rows, count, size, kv, heads // kv, dim).permute(0, 3, 1, 4, 2, 5) * dim**-0.5
    k, v = (x.transpose(1, 2) for x in context)
    own_k, own_v = (x.permute(0, 3, 1, 2, 4) for x in block)
    flat, each = q.flatten(2, 4), q.flatten(3, 4)
    to_context = (flat @ k.transpose(-1, -2)).view(*q.shape[:-1], -1)
    to_block = (each @ own_k.transpose(-1, -2)).view(*q.shape[:-1], size)
    # found.context [R, N, B or 1, S] -> [R, 1, N, 1, B or 1, S]
    to_context = to_context.masked_fill(~found.context[:, None, :, None], MASKED)
    to_block = to_block.masked_fill(~found.block, MASKED)
    shares = torch.cat([to_context, to_block], -1).softmax(-1)
    length = k.shape[2]
    seen = shares[..., :length].reshape(rows, kv, -1, length) @ v
    own = shares[..., length:].reshape(rows, kv, count, -1, size) @ own_v
    out = seen.view(q.shape) + own.view(q.shape)
    return out.permute(0, 2, 4, 1, 3, 5).reshape(rows, count, size, heads * dim)
