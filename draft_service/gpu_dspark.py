"""DSpark's rollout as a part of a draft step on a GPU: plain PyTorch, recorded in its graph."""

from torch import Tensor

from domino_kernels.linear import Linear
from draft_service.dspark import DSparkSampler
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig


class DSparkRollout:
    """A draft_service.gpu_step.Rollout; the head's products have no kernels of their own."""

    def __init__(
        self, config: DraftConfig, checkpoint: Checkpoint, lm_head: Tensor, embedding: Tensor
    ) -> None:
        """lm_head, embedding [vocab, hidden] on the device."""
        self._sampler = DSparkSampler(config, checkpoint, Linear(lm_head), embedding)

    def run(self, hidden: Tensor, current: Tensor) -> Tensor:
        """hidden [batch, n, hidden], current [batch] -> ids [batch, n]."""
        return self._sampler.propose(hidden, current)
