"""The draft's side of the self-test: the projection of its checkpoint, by torch alone."""

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig


def reference_rows(config: DraftConfig, checkpoint: Checkpoint, block: list[Tensor]) -> Tensor:
    """hidden_norm(fc(concat of block)), K tensors [n, hidden] -> [n, hidden], all in float32."""
    hidden = config.hidden_size
    fc = checkpoint.tensor("fc.weight", (hidden, len(block) * hidden), torch.float32)
    norm = checkpoint.tensor("hidden_norm.weight", (hidden,), torch.float32)
    return F.rms_norm(F.linear(torch.cat(block, -1), fc), (hidden,), norm, config.rms_norm_eps)
