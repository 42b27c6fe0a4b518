"""Attention of all blocks of a row over one shared context and each over itself.

Plain matrix products into one buffer of scores: keys of other blocks are never touched, the
context's keys are not copied for each block, and one copy of the shares is kept for the backward
pass. Runs on any device.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from serving.draft_config import LayerAttention
from training.rows import Anchors
from training.visibility import Visible, visible

MASKED = -1e30


class BlockAttention(Protocol):
    """How the blocks of a batch attend: `sees` once a batch and kind of layer, then every layer.

    Next: training.draft. The other one is training.flex, on GPUs.
    """

    def sees(self, anchors: Anchors, starts: Tensor, size: int, rule: LayerAttention) -> Any:
        """starts [R, S]: where each column's document begins; size: slots of a block."""

    def __call__(
        self, q: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], found: Any
    ) -> Tensor:
        """As `block_attention`."""


class DenseAttention:
    """By whole matrices of scores, on any device."""

    def sees(self, anchors: Anchors, starts: Tensor, size: int, rule: LayerAttention) -> Visible:
        return visible(anchors, starts, size, rule)

    def __call__(
        self,
        q: Tensor,
        context: tuple[Tensor, Tensor],
        block: tuple[Tensor, Tensor],
        found: Visible,
    ) -> Tensor:
        return block_attention(q, context, block, found)


def block_attention(
    q: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], found: Visible
) -> Tensor:
    """q [R, N, B, heads, d]; context k, v [R, S, kv, d]; block k, v [R, N, B, kv, d].

    Returns [R, N, B, heads * d].
    """
    rows, count, size, heads, dim = q.shape
    kv = context[0].shape[2]
    # [R * kv, N, group * B, d]: queries of one key head together
    q = q.view(rows, count, size, kv, heads // kv, dim).permute(0, 3, 1, 4, 2, 5)
    q = (q * dim**-0.5).reshape(rows * kv, count, -1, dim)
    k, v = (x.transpose(1, 2).reshape(rows * kv, -1, dim) for x in context)
    own_k, own_v = (x.permute(0, 3, 1, 2, 4).reshape(rows * kv, count, size, dim) for x in block)
    hidden = ~found.context[:, None, :, None], ~found.block
    out: Tensor = _Attention.apply(q, k, v, own_k, own_v, *hidden)  # type: ignore[no-untyped-call]
    out = out.view(rows, kv, count, heads // kv, size, dim).permute(0, 2, 4, 1, 3, 5)
    return out.reshape(rows, count, size, heads * dim)


class _Attention(torch.autograd.Function):
    """q [P, N, Q, d]; k, v [P, S, d]; own_k, own_v [P, N, B, d], P pairs of row and key head.

    no_context [R, 1, N, 1, B or 1, S] and no_block [B, B] bool: what is hidden.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        own_k: Tensor,
        own_v: Tensor,
        no_context: Tensor,
        no_block: Tensor,
    ) -> Tensor:
        scores = _both(q, k, own_k)
        rows, length, size = len(no_context), k.shape[1], own_k.shape[2]
        each = scores.view(rows, -1, *q.shape[1:2], q.shape[2] // size, size, length + size)
        each[..., :length].masked_fill_(no_context, MASKED)
        each[..., length:].masked_fill_(no_block, MASKED)
        shares = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, own_k, own_v, shares)
        return _weighted(shares, v, own_v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, own_k, own_v, shares = ctx.saved_tensors
        slope = slope.contiguous()
        scores = _both(slope, v, own_v)
        scores = torch._softmax_backward_data(scores, shares, -1, shares.dtype)
        to_k, to_own_k = _transposed(scores, q, k.shape[1])
        to_v, to_own_v = _transposed(shares, slope, k.shape[1])
        return _weighted(scores, k, own_k), to_k, to_v, to_own_k, to_own_v, None, None


def _both(q: Tensor, k: Tensor, own: Tensor) -> Tensor:
    """Products with the context's and the block's own vectors side by side [P, N, Q, S + B]."""
    pairs, count, queries, dim = q.shape
    length, size = k.shape[1], own.shape[2]
    out = q.new_empty(pairs, count, queries, length + size)
    rows = out.view(pairs, count * queries, -1)[..., :length]
    torch.bmm(q.view(pairs, -1, dim), k.transpose(1, 2), out=rows)
    blocks = out.view(pairs * count, queries, -1)[..., length:]
    torch.bmm(q.view(-1, queries, dim), own.flatten(0, 1).transpose(1, 2), out=blocks)
    return out


def _weighted(shares: Tensor, v: Tensor, own: Tensor) -> Tensor:
    """Sum of the context's and the block's own vectors by their shares [P, N, Q, d]."""
    pairs, count, queries, _ = shares.shape
    length, dim = v.shape[1:]
    out = torch.bmm(shares.view(pairs, count * queries, -1)[..., :length], v)
    blocks = shares.view(pairs * count, queries, -1)[..., length:]
    out = torch.baddbmm(out.view(pairs * count, queries, dim), blocks, own.flatten(0, 1))
    return out.view(pairs, count, queries, dim)


def _transposed(shares: Tensor, x: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """What x [P, N, Q, d] gives back to the context [P, S, d] and the blocks [P, N, B, d]."""
    pairs, count, queries, dim = x.shape
    rows = shares.view(pairs, count * queries, -1)[..., :length]
    context = torch.bmm(rows.transpose(1, 2), x.view(pairs, -1, dim))
    blocks = shares.view(pairs * count, queries, -1)[..., length:].transpose(1, 2)
    own = torch.bmm(blocks, x.view(-1, queries, dim))
    return context, own.view(pairs, count, -1, dim)
