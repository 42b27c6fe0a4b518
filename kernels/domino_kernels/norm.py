"""Root mean square normalisation."""

from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., n], weight [n] -> [..., n] in x's dtype; statistics in float32 (Llama, Qwen3)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
