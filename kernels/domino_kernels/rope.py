"""Rotary position embedding, the half-split ("neox") layout of Llama and Qwen."""

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines of every position up to `max_positions`, computed once in float32."""

    def __init__(
        self,
        head_dim: int,
        theta: float,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        angles = torch.outer(torch.arange(max_positions).float(), 1.0 / theta**exponent)
        self._cos = angles.cos().to(device, dtype)
        self._sin = angles.sin().to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [n] -> (cos, sin), each [n, 1, head_dim / 2], to broadcast over heads."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, head_dim] rotated by the angles of its rows."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
