"""Linear layers whose weights are packed once at load.

On a CPU, oneDNN's packed weights are read without repacking (several times faster for a few rows
than an unpacked matmul) and give every row the same bits whatever the number of rows, from a
minimum that is measured at load. That makes speculative and plain decoding equal by construction.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

PACKED_DTYPES = (torch.float32, torch.bfloat16)
PROBE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 24, 32, 33, 64, 128, 256)


class Linear:
    """y = x W^T + b with `weight` [out, in] and `bias` [out], both in the activations' dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._packed = _can_pack(weight)
        self._weight = _pack(weight) if self._packed else weight.contiguous()
        self._bias = bias
        self._min_rows = 1
        if self._packed and weight.dtype == torch.float32:
            threads = torch.get_num_threads()
            self._min_rows = row_invariant_from(self.in_features, self.out_features, threads)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        rows = x.reshape(-1, self.in_features)
        missing = self._min_rows - len(rows)
        if missing <= 0:
            y = _packed_linear(rows, self._weight, self._bias)
        else:
            y = _packed_linear(F.pad(rows, (0, 0, 0, missing)), self._weight, self._bias)
            y = y[: len(rows)]
        return y.view(*x.shape[:-1], self.out_features)


def _can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKED_DTYPES
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return packed


def _packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, "none", [], "")
    return y


@cache
def row_invariant_from(in_features: int, out_features: int, threads: int) -> int:
    """Fewest rows from which this float32 layer gives each row the same bits at every row count.

    Measured, because it depends on the processor and on the thread count (`threads` is only the
    cache's key). Raises RuntimeError where no row count is safe: exactness has no ground there.
    """
    generator = torch.Generator().manual_seed(0)
    packed = _pack(torch.randn(out_features, in_features, generator=generator))
    x = torch.randn(max(PROBE_ROWS), in_features, generator=generator)
    return _first_invariant(lambda rows: _packed_linear(rows, packed, None), x)


def _first_invariant(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    reference = layer(x)
    safe = 0
    for rows in reversed(PROBE_ROWS):
        head, tail = layer(x[:rows]), layer(x[-rows:])
        if not (torch.equal(head, reference[:rows]) and torch.equal(tail, reference[-rows:])):
            break
        safe = rows
    if safe == 0 or safe > 16:
        raise RuntimeError(
            f"float32 linear {tuple(x.shape[1:])} is not row-invariant on this processor "
            f"(first safe row count {safe}); use --dtype bfloat16 or another machine"
        )
    return safe
