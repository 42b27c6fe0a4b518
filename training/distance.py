"""DSpark's loss through a frozen head, chunk by chunk: cross-entropy and distance to the target.

distance is the sum of |p - q| over the vocabulary, q being the target's own distribution; 1 minus
half of it is the chance that a sampled token is accepted. Gradients are formed at once, so that one
chunk's [rows, vocab] logits exist at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceHead:
    """lm_head [V, H], frozen. chunk: rows at a time. ce, l1: shares in the loss."""

    lm_head: Tensor
    chunk: int
    ce: float
    l1: float


def distance_losses(
    head: DistanceHead,
    hidden: Tensor,
    small: Tensor,
    up: Tensor,
    labels: Tensor,
    weight: Tensor,
    last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(weighted sum to differentiate; base and final cross-entropy and the distance of each row).

    hidden, last [n, H]; small [n, E] and up [V, E] make the bias; labels [n]; weight [n] float32.
    """
    result: tuple[Tensor, Tensor, Tensor, Tensor] = _Distance.apply(  # type: ignore[no-untyped-call]
        hidden, small, up, head, labels, weight, last
    )
    return result


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        small: Tensor,
        up: Tensor,
        head: DistanceHead,
        labels: Tensor,
        weight: Tensor,
        last: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        to_hidden, to_small = torch.empty_like(hidden), torch.empty_like(small)
        to_up = torch.zeros_like(up, dtype=torch.float32)
        rows = torch.empty(3, len(hidden), device=hidden.device)
        of_rows = _fused_row_losses() if hidden.is_cuda else _row_losses
        for first in range(0, len(hidden), head.chunk):
            part = slice(first, first + head.chunk)
            base = hidden[part] @ head.lm_head.T
            final = torch.addmm(base, small[part], up.T)
            teacher = last[part] @ head.lm_head.T
            shares = head.ce, head.l1
            slope, rows[:, part] = of_rows(shares, base, final, teacher, labels[part], weight[part])
            torch.mm(slope, head.lm_head, out=to_hidden[part])
            torch.mm(slope, up, out=to_small[part])
            to_up += slope.T @ small[part]
        ctx.save_for_backward(to_hidden, to_small, to_up)
        base_loss, final_loss, distance = rows.unbind()
        ctx.mark_non_differentiable(base_loss, final_loss, distance)
        loss = (weight * (head.ce * final_loss + head.l1 * distance)).sum()
        return loss, base_loss, final_loss, distance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, small, up = (t * slope for t in ctx.saved_tensors)
        return hidden, small, up, None, None, None, None


def _row_losses(
    share: tuple[float, float],
    base: Tensor,
    final: Tensor,
    teacher: Tensor,
    labels: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """Logits [n, V] -> gradient of the weighted losses by the final ones, in their dtype, and each
    row's three figures [3, n]. share: of the cross-entropy and of the distance."""
    ce, l1 = share
    index = labels[:, None]
    base_loss = torch.logsumexp(base.float(), -1) - base.gather(1, index)[:, 0].float()
    log_shares = final.float().log_softmax(-1)
    shares = log_shares.exp()
    apart = shares - teacher.float().softmax(-1)
    sign = apart.sign()
    pull = shares * (sign - (shares * sign).sum(-1, keepdim=True))
    one = (torch.arange(shares.shape[1], device=labels.device) == index).float()
    figures = torch.stack([base_loss, -log_shares.gather(1, index)[:, 0], apart.abs().sum(-1)])
    slope = (ce * (shares - one) + l1 * pull) * weight[:, None]
    return slope.to(final.dtype), figures


@cache
def _fused_row_losses() -> Callable[..., tuple[Tensor, Tensor]]:
    """One pass over the logits instead of a dozen; made when first used, since that takes long."""
    return torch.compile(_row_losses, dynamic=False)
