"""How often a draft is right, as sums that add up over batches and ranks.

accept_len is what greedy verification would emit per step: the accepted prefix and the bonus.
Blocks cut short by the end of a document bias it down.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from training.cross_entropy import Head
from training.labels import Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Scalars; scored: slots that count, blocks: blocks with at least one."""

    scored: Tensor
    blocks: Tensor
    base_right: Tensor
    final_right: Tensor
    base_top5: Tensor
    final_top5: Tensor
    base_accepted: Tensor
    final_accepted: Tensor

    def figures(self) -> Mapping[str, float]:
        """Means by name; zeros where nothing counted."""
        c = {f.name: float(getattr(self, f.name)) for f in fields(self)}
        scored, blocks = max(c["scored"], 1), max(c["blocks"], 1)
        return {
            "accuracy": c["final_right"] / scored,
            "base_accuracy": c["base_right"] / scored,
            "top5": c["final_top5"] / scored,
            "base_top5": c["base_top5"] / scored,
            "accept_len": (c["final_accepted"] + c["blocks"]) / blocks,
            "base_accept_len": (c["base_accepted"] + c["blocks"]) / blocks,
        }


def count(
    hidden: Tensor, correction: tuple[Tensor, Tensor] | None, head: Head, labels: Labels
) -> Counts:
    """hidden [R, N, B, H]; correction: bottleneck [R, N, B, E] and its matrix [V, E]."""
    ids, n = labels.ids.flatten(), labels.ids.numel()
    hits = torch.zeros(4, n, dtype=torch.bool, device=ids.device)
    flat = hidden.flatten(0, 2)
    for first in range(0, n, head.chunk):
        part = slice(first, first + head.chunk)
        base = flat[part] @ head.lm_head.T
        final = base
        if correction is not None:
            small, up = correction
            final = torch.addmm(base, small.flatten(0, 2)[part], up.T)
        for i, logits in enumerate((base, final)):
            best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == ids[part, None]
            hits[i, part] = logits.argmax(-1) == ids[part]
            hits[2 + i, part] = best.any(-1) | hits[i, part]
    hits &= labels.counts.flatten()
    base_right, final_right = (hits[i].view_as(labels.counts) for i in (0, 1))
    return Counts(
        scored=labels.counts.sum(),
        blocks=labels.counts.any(-1).sum(),
        base_right=base_right.sum(),
        final_right=final_right.sum(),
        base_top5=hits[2].sum(),
        final_top5=hits[3].sum(),
        base_accepted=accepted(base_right, labels.counts).sum(),
        final_accepted=accepted(final_right, labels.counts).sum(),
    )


def accepted(right: Tensor, counts: Tensor) -> Tensor:
    """Length of each block's right prefix [R, N], slots that do not count being left out."""
    prefix = (right | ~counts).long().cumprod(-1)
    return (prefix * counts).sum(-1)
