"""Rotary position embedding, the half-split ("neox") layout of Llama and Qwen."""

import math
from typing import Protocol

import torch
from torch import Tensor


class Rope(Protocol):
    """What a checkpoint says of its rotary embedding; `kind` says which of the factors count.

    kind: default, linear, dynamic (unscaled within the served context), llama3 or yarn.
    original_context: positions of the training before scaling. attention_factor: what cosines and
    sines are multiplied by.
    """

    @property
    def kind(self) -> str: ...
    @property
    def theta(self) -> float: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_context(self) -> int: ...
    @property
    def low_freq_factor(self) -> float: ...
    @property
    def high_freq_factor(self) -> float: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def attention_factor(self) -> float: ...


class RotaryTable:
    """Cosines and sines [max_positions, head_dim / 2], computed once in float32."""

    def __init__(
        self,
        head_dim: int,
        rope: Rope,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        frequencies = inverse_frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(max_positions).float(), frequencies)
        self.cos = (angles.cos() * rope.attention_factor).to(device, dtype)
        self.sin = (angles.sin() * rope.attention_factor).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [n] -> (cos, sin), each [n, 1, head_dim / 2], to broadcast over heads."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, head_dim] rotated by the angles of its rows."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position of each pair of channels: [head_dim / 2], float32."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    periods = rope.theta**exponent
    if rope.kind == "linear":
        return 1.0 / periods / rope.factor
    if rope.kind == "llama3":
        return _llama3(1.0 / periods, rope)
    if rope.kind == "yarn":
        return _yarn(periods, rope, head_dim)
    return 1.0 / periods


def _llama3(frequencies: Tensor, rope: Rope) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    turns = rope.original_context / (2 * math.pi / frequencies)  # within the original context
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * frequencies / rope.factor + keep * frequencies


def _yarn(periods: Tensor, rope: Rope, head_dim: int) -> Tensor:
    """Channels that turn often keep their frequency, slow ones are stretched, a ramp between."""

    def channel(turns: float) -> float:
        period = rope.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(period) / (2 * math.log(rope.theta))

    low, high = channel(rope.beta_fast), channel(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high += 0.001 if low == high else 0
    keep = 1 - ((torch.arange(len(periods)).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * periods) * (1 - keep) + 1.0 / periods * keep
