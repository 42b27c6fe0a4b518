"""One batch's loss: rows and anchors in, sums out that add up over any number of batches.

Numerator and denominator are kept apart, so that a window of micro-batches, on one rank or many,
is one weighted mean.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from training.cross_entropy import Head, head_losses
from training.domino import UP, bottleneck, previous_ids
from training.draft import DraftForward, Weights
from training.labels import Labels, make_labels
from training.metrics import Counts, count
from training.rows import Anchors, Rows, take
from training.slots import ScoredSlots, pick
from training.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Scalars. loss: to differentiate. weight: what to divide it by. base, final: weighted
    cross-entropies of the branches, without gradient."""

    loss: Tensor
    weight: Tensor
    base: Tensor
    final: Tensor

    @classmethod
    def of(cls, loss: Tensor, weight: Tensor, base: Tensor, final: Tensor) -> Self:
        """loss: scalar. weight, base, final [n]: of each row."""
        total, of_base, of_final = weight.sum(), (weight * base).sum(), (weight * final).sum()
        return cls(loss=loss, weight=total, base=of_base, final=of_final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """DFlash, or with the head Domino: (1 - share) * final + share * base.

    slots: which ones are scored for the loss; all without it. vocabulary: what the loss ranges
    over; all ids without it.
    """

    draft: DraftForward
    head: Head
    gamma: float | None
    slots: ScoredSlots | None = None
    vocabulary: Vocabulary | None = None

    def sums(self, weights: Weights, rows: Rows, anchors: Anchors, share: Tensor) -> Sums:
        """share: scalar, the base branch's part; DFlash has that branch only."""
        labels = self._labels(rows, anchors)
        ids, weight = labels.ids, labels.weights
        hidden, small = self._branches(weights, rows, anchors)
        last = None
        if rows.last is not None and self.head.soft > 0:
            last = self._last(rows.last, anchors).to(hidden.dtype)
        if self.slots is not None and not self.slots.all:
            index = self.slots.index(anchors.columns)
            weight = pick(weight, index) * self.slots.weights(weight.device)
            ids, hidden = pick(ids, index), pick(hidden, index)
            small = None if small is None else pick(small, index)
            last = None if last is None else pick(last, index)
        ids, weight, head, up = ids.flatten(), weight.flatten(), self.head, weights.get(UP)
        if self.vocabulary is not None:
            ids, weight = self.vocabulary.labels(ids, weight)
            head = replace(head, lm_head=self.vocabulary.lm_head)
            up = None if up is None else up[self.vocabulary.ids]
        loss, base, final = head_losses(
            head,
            hidden.flatten(0, 2),
            None if small is None else small.flatten(0, 2),
            up,
            ids,
            weight if small is None else weight * share,
            weight * (1 - share),
            None if last is None else last.flatten(0, 2),
        )
        return Sums.of(loss, weight, base, final)

    @torch.no_grad()
    def measure(self, weights: Weights, rows: Rows, anchors: Anchors) -> Counts:
        """What each branch gets right, block by block."""
        hidden, small = self._branches(weights, rows, anchors)
        correction = None if small is None else (small, weights[UP])
        return count(hidden, correction, self.head, self._labels(rows, anchors))

    def _labels(self, rows: Rows, anchors: Anchors) -> Labels:
        config = self.draft.config
        return make_labels(
            rows,
            anchors,
            block_size=config.block_size,
            shift=config.shift_label,
            gamma=self.gamma,
        )

    def _branches(
        self, weights: Weights, rows: Rows, anchors: Anchors
    ) -> tuple[Tensor, Tensor | None]:
        hidden = self.draft.hidden(weights, rows, anchors)
        config = self.draft.config
        if config.domino is None:
            return hidden, None
        previous = previous_ids(rows, anchors, config.block_size)
        return hidden, bottleneck(config, weights, hidden, previous, self.draft.embedding)

    def _last(self, last: Tensor, anchors: Anchors) -> Tensor:
        """The target's state that predicts each slot's label: one column before it."""
        config = self.draft.config
        columns = anchors.positions(int(config.shift_label) - 1, config.block_size)
        return take(last, columns.clamp(min=0))
