"""DSpark's heads: hidden states of a block in, biased logits, proposals and confidences out.

A low-rank bias depends on the token before: W2 W1[previous], gated by the slot's hidden state or
carried along by a small recurrent state. A confidence head says where a block is better cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
GATE, JOINT, CONFIDENCE = (
    "markov_head.gate_proj.",
    "markov_head.joint_proj.",
    "confidence_head.proj.",
)


@dataclass(frozen=True, slots=True)
class Proposed:
    """ids [n]; logits [n, V], the bias included; confidences [n] before the sigmoid, or None."""

    ids: Tensor
    logits: Tensor
    confidences: Tensor | None


@dataclass(frozen=True, slots=True)
class DSparkHeads:
    """Weights by the DeepSpec tensor names; which of them are there says which head it is."""

    weights: Mapping[str, Tensor]

    def propose(self, hidden: Tensor, base: Tensor, current: Tensor) -> Proposed:
        """hidden [n, H] normed, base [n, V] logits, current: the anchor's id, a scalar.

        Slot j predicts the token behind the one at j; each proposal is the next one's predecessor.
        """
        state = hidden.new_zeros(self.weights[W2].shape[1]) if W2 in self.weights else None
        previous, ids, logits, confidences = current, [], [], []
        for h, row in zip(hidden, base, strict=True):
            embedded = None
            if state is not None:
                embedded = self.weights[W1][previous]
                bias, state = self._bias(h, embedded, state)
                row = row + bias
            if CONFIDENCE + "weight" in self.weights:
                confidences.append(self._confidence(h, embedded))
            previous = row.argmax(-1)
            ids.append(previous)
            logits.append(row)
        sure = torch.stack(confidences) if confidences else None
        return Proposed(torch.stack(ids), torch.stack(logits), sure)

    def _bias(self, h: Tensor, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The bias over the vocabulary and the next state."""
        if JOINT + "weight" in self.weights:
            gate, new, out = self._linear(JOINT, torch.cat([state, embedded, h])).chunk(3)
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(new)
            return self.weights[W2] @ torch.tanh(out), state
        if GATE + "weight" in self.weights:
            embedded = embedded * torch.sigmoid(self._linear(GATE, torch.cat([h, embedded])))
        return self.weights[W2] @ embedded, state

    def _confidence(self, h: Tensor, embedded: Tensor | None) -> Tensor:
        width = self.weights[CONFIDENCE + "weight"].shape[1]
        if width > len(h):
            assert embedded is not None, "a confidence head of this width needs the Markov head"
            h = torch.cat([h, embedded])
        return self._linear(CONFIDENCE, h)[0]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[name + "weight"], self.weights[name + "bias"])


def kept(confidences: Tensor, threshold: float) -> int:
    """Proposals before the first one whose confidence is below the threshold."""
    return int((confidences.sigmoid() >= threshold).long().cumprod(0).sum())
