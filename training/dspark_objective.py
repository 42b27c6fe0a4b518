"""One batch's loss of a DSpark draft: cross-entropy, distance to the target, and confidence.

The confidence head learns the chance that a sampled proposal is accepted, 1 minus half the distance
(arXiv 2607.05147: shares 0.1, 0.9 and 1). There is no base branch in the loss, hence no curriculum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.draft_tensors import W2
from training.distance import DistanceHead, distance_losses
from training.domino import previous_ids
from training.draft import Weights
from training.dspark import markov
from training.metrics import Counts, count
from training.objective import Objective, Sums
from training.rows import Anchors, Rows
from training.slots import pick


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkObjective(Objective):
    """ce, l1, confidence: shares in the loss."""

    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0

    def sums(self, weights: Weights, rows: Rows, anchors: Anchors, share: Tensor) -> Sums:
        """share is the base branch's and does not count here."""
        assert rows.last is not None, "the target's last state is needed"
        labels = self._labels(rows, anchors)
        hidden, small, sure = self._all(weights, rows, anchors)
        parts = [labels.ids, labels.weights, hidden, small]
        parts += [self._last(rows.last, anchors).to(hidden.dtype)]
        parts += [] if sure is None else [sure]
        if self.slots is not None and not self.slots.all:
            index = self.slots.index(anchors.columns)
            parts = [pick(part, index) for part in parts]
            parts[1] = parts[1] * self.slots.weights(hidden.device)
        ids, weight, hidden, small, last = (part.flatten(0, 2) for part in parts[:5])
        head = DistanceHead(
            lm_head=self.head.lm_head, chunk=self.head.chunk, ce=self.ce, l1=self.l1
        )
        loss, base, final, distance = distance_losses(
            head, hidden, small, weights[W2], ids, weight, last
        )
        if sure is not None:
            wanted = (1 - distance / 2).clamp(0, 1)
            missed = F.binary_cross_entropy_with_logits(
                parts[5].flatten().float(), wanted, reduction="none"
            )
            loss = loss + self.confidence * (weight * missed).sum()
        return Sums.of(loss, weight, base, final)

    @torch.no_grad()
    def measure(self, weights: Weights, rows: Rows, anchors: Anchors) -> Counts:
        """What each branch gets right, block by block."""
        hidden, small, _ = self._all(weights, rows, anchors)
        return count(hidden, (small, weights[W2]), self.head, self._labels(rows, anchors))

    def _all(
        self, weights: Weights, rows: Rows, anchors: Anchors
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        config = self.draft.config
        hidden = self.draft.hidden(weights, rows, anchors)
        previous = previous_ids(rows, anchors, config.block_size)
        return hidden, *markov(config, weights, hidden, previous)
