"""The copy of W2 in few bits that the certified rollout scans, and the bound that makes it exact.

W2 row v = mean + scale[v] * q[v] + e[v], q whole numbers up to `levels`. The mean adds the same
amount to every score, so it never changes an argmax and is dropped. With a bottleneck s rounded to
a byte or two, d its rounding error and W an `error_weight`, the exact score (less that constant) is
within slack[v] * (|s| + W |d|) of base + scale[v] * q[v] . s: |e . s| <= |e| |s|,
|scale q . d| <= |scale q| |d| <= slack W |d|, and the float32 sums of both sides. Nothing is
assumed of W2 or s: a hard case costs candidates, never the answer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ERROR_WEIGHT = 100.0  # for 8 bits
FLOAT32_SUMS = (
    2.0**-14
)  # relative to |w| |s|: 4x the worst case of 256 truncating float32 additions
MARGIN = 1.001  # for the rounding of the norms themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedRows:
    """q [V', E'] int8 (zeros beyond V and E), scale and slack [V'] float32."""

    q: Tensor
    scale: Tensor
    slack: Tensor


def bound_rows(
    w2: Tensor, *, tile: int, width: int, levels: int = 127, error_weight: float = ERROR_WEIGHT
) -> BoundedRows:
    """w2 [V, E] -> its copy, V' the next multiple of `tile`, E' = `width` >= E.

    levels: the most a value can be, 127 with 8 bits. error_weight: best about |scale q| / |e|, so
    that one slack serves both errors.
    Raises ValueError where the float32 error constant would not hold.
    """
    vocab, bottleneck = w2.shape
    if bottleneck > 1024:
        raise ValueError(
            f"w2 has E = {bottleneck}: the certified mode holds up to 1024, use mode 0"
        )
    rows, device = -(-vocab // tile) * tile, w2.device
    q = torch.zeros(rows, width, dtype=torch.int8, device=device)
    scale, slack = (torch.zeros(rows, device=device) for _ in range(2))
    mean = w2.double().mean(0).float().double()
    for start in range(0, vocab, 16384):
        part = slice(start, min(start + 16384, vocab))
        q[part, :bottleneck], scale[part], slack[part] = _quantise(
            w2[part].double(), mean, levels, error_weight
        )
    return BoundedRows(q=q, scale=scale, slack=slack)


def _quantise(
    w: Tensor, mean: Tensor, levels: int, error_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    centred = w - mean
    scale = (centred.abs().amax(1) / levels).float().clamp_min(torch.finfo(torch.float32).tiny)
    wide = scale.double()[:, None]
    q = (centred / wide).round().clamp(-levels, levels)
    error, copy = (centred - wide * q).norm(dim=1), (wide * q).norm(dim=1)
    sums = FLOAT32_SUMS * max(1.0, w.shape[1] / 256) * (w.norm(dim=1) + mean.norm() + copy)
    slack = torch.maximum(error + sums, copy / error_weight) * MARGIN
    return q.to(torch.int8), scale, slack.float()
