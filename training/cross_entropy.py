"""Loss of both branches through a frozen head, chunk by chunk, with the gradients formed at once.

Only one chunk's [rows, vocab] logits exist at a time; what is kept for the backward pass has the
size of the inputs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """lm_head [vocab, hidden], frozen. chunk: rows at a time. soft: the share of the target's own
    distribution in the wanted one, the rest being the label."""

    lm_head: Tensor
    chunk: int = 4096
    soft: float = 0.0


def head_losses(
    head: Head,
    hidden: Tensor,
    small: Tensor | None,
    up: Tensor | None,
    labels: Tensor,
    base_weight: Tensor,
    final_weight: Tensor,
    last: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(sum of weighted losses to differentiate, base and final cross-entropy of each row).

    hidden [n, H]; small [n, E] and up [V, E]: the correction, or None; labels [n]; weights [n]
    float32; last [n, H]: the target's normed hidden state that predicts each label. Without a
    correction the final branch is the base branch, and final_weight does not count.
    """
    result: tuple[Tensor, Tensor, Tensor] = _HeadLosses.apply(  # type: ignore[no-untyped-call]
        hidden, small, up, head, labels, base_weight, final_weight, last
    )
    return result


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        small: Tensor | None,
        up: Tensor | None,
        head: Head,
        labels: Tensor,
        base_weight: Tensor,
        final_weight: Tensor,
        last: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_hidden = torch.empty_like(hidden)
        to_small = None if small is None else torch.empty_like(small)
        to_up = None if up is None else torch.zeros_like(up, dtype=torch.float32)
        base_loss = torch.empty(len(hidden), device=hidden.device)
        final_loss = torch.empty_like(base_loss)
        for first in range(0, len(hidden), head.chunk):
            part = slice(first, first + head.chunk)
            base = hidden[part] @ head.lm_head.T
            final = None
            if small is not None and up is not None:
                final = torch.addmm(base, small[part], up.T)
            use_soft = last is not None and head.soft > 0
            branch_losses_(
                base,
                final,
                last[part] @ head.lm_head.T if use_soft and last is not None else None,
                labels[part],
                base_weight[part],
                final_weight[part],
                base_loss[part],
                final_loss[part],
                head.soft,
            )
            torch.mm(base, head.lm_head, out=to_hidden[part])
            if final is not None:
                assert small is not None and up is not None
                assert to_small is not None and to_up is not None
                torch.mm(final, up, out=to_small[part])
                to_up += final.T @ small[part]
        ctx.save_for_backward(to_hidden, to_small, to_up)
        if small is None:
            final_loss.copy_(base_loss)
        ctx.mark_non_differentiable(base_loss, final_loss)
        loss = (base_weight * base_loss).sum()
        return loss if small is None else loss + (final_weight * final_loss).sum(), *(
            base_loss,
            final_loss,
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, small, up = (None if t is None else t * slope for t in ctx.saved_tensors)
        return hidden, small, up, None, None, None, None, None


def branch_losses_(
    base: Tensor,
    final: Tensor | None,
    teacher: Tensor | None,
    labels: Tensor,
    base_weight: Tensor,
    final_weight: Tensor,
    base_loss: Tensor,
    final_loss: Tensor,
    soft: float,
) -> None:
    """Logits [n, V] in; `base` becomes the gradient of the base logits (the correction is added
    to them, so the final branch's counts too), `final` that of the final ones.

    Cross-entropies against the labels go to base_loss and final_loss [n].
    """
    if base.is_cuda:
        from domino_kernels import cross_entropy

        cross_entropy.branch_losses_(
            base, final, teacher, labels, base_weight, final_weight, base_loss, final_loss, soft
        )
        return
    wanted = torch.zeros_like(base, dtype=torch.float32).scatter_(1, labels[:, None], 1.0)
    if teacher is not None:
        wanted = torch.lerp(wanted, teacher.float().softmax(-1), soft)
    slope = _branch(base, labels, wanted, base_weight, base_loss)
    if final is not None:
        own = _branch(final, labels, wanted, final_weight, final_loss)
        final.copy_(own)
        slope += own
    base.copy_(slope)


def _branch(logits: Tensor, labels: Tensor, wanted: Tensor, weight: Tensor, loss: Tensor) -> Tensor:
    log_shares = logits.float().log_softmax(-1)
    loss.copy_(-log_shares.gather(1, labels[:, None])[:, 0])
    return (log_shares.exp_() - wanted) * weight[:, None]
