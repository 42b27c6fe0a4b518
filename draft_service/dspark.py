"""DSpark's heads: hidden states of blocks in, proposals and their confidences out.

A low-rank bias on the base logits depends on the token before, W2 W1[previous], gated by the slot's
hidden state or carried along by a small recurrent state (arXiv 2607.05147; DeepSpec's layout).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.argmax import argmax
from domino_kernels.linear import Linear
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_tensors import CONFIDENCE, GATE, JOINT, W1, W2, dspark_tensors


@dataclass(frozen=True, slots=True)
class Proposed:
    """ids [batch, n]; logits [batch, n, vocab], the bias included; confidences [batch, n] before
    the sigmoid, or None."""

    ids: Tensor
    logits: Tensor
    confidences: Tensor | None


class DSparkSampler:
    """Slot j proposes the token behind the one at j; each is the next one's predecessor."""

    def __init__(
        self, config: DraftConfig, checkpoint: Checkpoint, lm_head: Linear, embedding: Tensor
    ) -> None:
        """embedding: gives the dtype and the device."""
        head = config.dspark
        assert head is not None, "the checkpoint has no DSpark head"
        self._head, self._lm_head = head, lm_head

        def read(name: str, shape: tuple[int, ...]) -> Tensor:
            return checkpoint.tensor(name, shape, embedding.dtype).to(embedding.device)

        shapes = dspark_tensors(config)
        self._weights = {name: read(name, shape) for name, shape in shapes.items()}
        self._to_vocab = Linear(self._weights[W2])

    def propose(self, hidden: Tensor, current: Tensor) -> Tensor:
        """hidden [batch, n, hidden], current [batch] -> ids [batch, n]."""
        return torch.stack([ids for ids, _, _ in self._slots(hidden, current)], 1)

    def run(self, hidden: Tensor, current: Tensor) -> Proposed:
        """The same with the logits that the ids are chosen from."""
        ids, logits, sure = zip(*self._slots(hidden, current, confidences=True), strict=True)
        confidences = torch.stack(sure, 1) if self._head.confidence else None
        return Proposed(torch.stack(ids, 1), torch.stack(logits, 1), confidences)

    def _slots(
        self, hidden: Tensor, current: Tensor, *, confidences: bool = False
    ) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Slot after slot: id [batch], logits [batch, vocab], confidence [batch]."""
        state = hidden.new_zeros(len(hidden), self._head.rank)
        previous = current
        z = hidden.transpose(0, 1)
        for h, base in zip(z, self._lm_head(z).float(), strict=True):
            embedded = self._weights[W1][previous]
            small, state = self._small(h, embedded, state)
            row = self._to_vocab(small, onto=base)
            sure = None
            if self._head.confidence and confidences:
                read = torch.cat([h, embedded], -1) if self._head.reads_markov else h
                sure = self._linear(CONFIDENCE, read)[:, 0]
            previous = argmax(row).clamp_(min=0)  # -1: a NaN; drafts may be wrong
            yield previous, row, sure

    def _small(self, h: Tensor, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What W2 makes the bias of [batch, rank], and the next state."""
        if self._head.kind == "rnn":
            gate, new, out = self._linear(JOINT, torch.cat([state, embedded, h], -1)).chunk(3, -1)
            gate = torch.sigmoid(gate)
            return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(new)
        if self._head.kind == "gated":
            gate = torch.sigmoid(self._linear(GATE, torch.cat([h, embedded], -1)))
            return embedded * gate, state
        return embedded, state

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weights[name + "weight"], self._weights[name + "bias"])


def kept(confidences: Tensor, threshold: float) -> Tensor:
    """confidences [batch, n] -> proposals before the first one below the threshold [batch]."""
    return (confidences.sigmoid() >= threshold).long().cumprod(-1).sum(-1)
