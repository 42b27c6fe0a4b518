"""The draft's input projection, run by the verify service: one row a token crosses the wire."""

from copy import copy
from typing import Self

import torch
from torch import Tensor

from domino_kernels.linear import Linear
from domino_kernels.norm import rms_norm
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig


class FeatureProjection:
    """hidden_norm(fc(concat of the tapped layers' outputs)), with the draft's own epsilon."""

    def __init__(
        self,
        config: DraftConfig,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        hidden, taps = config.hidden_size, len(config.target_layer_ids)
        self._eps = config.rms_norm_eps
        self._set(
            checkpoint.tensor("fc.weight", (hidden, taps * hidden), dtype).to(device),
            checkpoint.tensor("hidden_norm.weight", (hidden,), dtype).to(device),
        )

    def replaced(self, fc: Tensor, norm: Tensor) -> Self:
        """The same with the weights of another draft: fc [hidden, K * hidden], norm [hidden]."""
        made = copy(self)
        made._set(fc.to(self._norm.device), norm.to(self._norm.device))
        return made

    def _set(self, fc: Tensor, norm: Tensor) -> None:
        self._fc, self._norm = Linear(fc), norm

    def __call__(self, taps: list[Tensor]) -> Tensor:
        """K tensors [n, hidden] -> rows [n, hidden]."""
        return rms_norm(self._fc(torch.cat(taps, dim=-1)), self._norm, self._eps)
