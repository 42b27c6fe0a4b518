"""Linear layers whose weights are packed once at load.

On a CPU every row has the same bits whatever rows surround it, which makes speculative and plain
decoding equal by construction. In float32 the project's own kernel does it (domino_kernels.native).
Where it cannot be built, torch's packed products do, from a number of rows that is measured at
load: MKL's is tried first, being faster for one row, then oneDNN's, which serves bfloat16 too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.native.library import has_int8, library
from domino_kernels.native.linear import NativeLinear

PROBE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 24, 32, 33, 64, 128, 256)
MAX_PADDED_ROWS = 16
MKL_ROWS = 64  # the row count MKL packs for; packed for 1, a layer would not be row-invariant
Layer = Callable[[Tensor], Tensor]  # rows [n, in] -> [n, out]
Pack = Callable[[Tensor], Layer]
_int8 = ContextVar("int8", default=False)


@contextmanager
def int8_weights(wanted: bool) -> Iterator[None]:
    """Linear layers made within have weights of 8 bits where a native kernel takes them, and are
    near what they should be: for drafts, whose proposals are verified."""
    before = _int8.set(wanted and has_int8())
    try:
        yield
    finally:
        _int8.reset(before)


class Linear:
    """y = x W^T + b with `weight` [out, in] and `bias` [out], both in the activations' dtype.

    weight: where it is not packed, that is on any device but a CPU, and in float16.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias, self._min_rows = bias, 1
        self.native: NativeLinear | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and library():
            self.native = NativeLinear(weight, bias, int8=_int8.get())
        elif weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
            self.weight = weight.contiguous()
            self._layer: Layer = partial(F.linear, weight=self.weight)
        elif weight.dtype == torch.bfloat16:
            self._layer = pack_onednn(weight)
        else:
            shape = (self.in_features, self.out_features)
            pack, self._min_rows = row_invariant_packing(*shape, torch.get_num_threads())
            self._layer = pack(weight)

    def __call__(self, x: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """x [..., in] -> [..., out]; `onto` [..., out], contiguous, is added to and returned."""
        rows = x.reshape(-1, self.in_features)
        if self.native:
            y = self.native(rows, onto)
            return y.view(*x.shape[:-1], self.out_features)
        missing = self._min_rows - len(rows)
        y = self._layer(F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows.contiguous())
        y = y[: len(rows)]
        y = y if self._bias is None else y + self._bias
        y = y.view(*x.shape[:-1], self.out_features)
        return y if onto is None else onto.add_(y)


def pack_mkl(weight: Tensor) -> Layer:
    """A float32 layer by MKL's packed matrix product."""
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), MKL_ROWS)
    shape = weight.new_empty(1, 1).expand(weight.shape)  # read for its shape only

    def layer(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkl._mkl_linear(x, packed, shape, None, len(x))
        return y

    return layer


def pack_onednn(weight: Tensor) -> Layer:
    """A float32 or bfloat16 layer by oneDNN's packed matrix product."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)

    def layer(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return y

    return layer


@cache
def row_invariant_packing(in_features: int, out_features: int, threads: int) -> tuple[Pack, int]:
    """The packing to use for a float32 layer, and the fewest rows from which it is row-invariant.

    Measured, because it depends on the processor and on the thread count (`threads` is only the
    cache's key). Raises RuntimeError where no packing is safe: exactness has no ground there.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(out_features, in_features, generator=generator)
    x = torch.randn(max(PROBE_ROWS), in_features, generator=generator)
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    for pack in (pack_mkl, pack_onednn) if mkl else (pack_onednn,):
        layer = pack(weight)
        right = torch.allclose(layer(x), F.linear(x, weight), rtol=1e-3, atol=1e-3)
        safe = _invariant_from(layer, x)
        if right and safe <= MAX_PADDED_ROWS:
            return pack, safe
    raise RuntimeError(
        f"no float32 linear {in_features} -> {out_features} is row-invariant on this processor; "
        "use --dtype bfloat16 or another machine"
    )


def _invariant_from(layer: Layer, x: Tensor) -> int:
    """Fewest rows from which rows keep their bits, by position too; len(x) + 1 when none."""
    reference = layer(x)
    safe = len(x) + 1
    for rows in reversed(PROBE_ROWS):
        head, tail = layer(x[:rows].contiguous()), layer(x[-rows:].contiguous())
        if not (torch.equal(head, reference[:rows]) and torch.equal(tail, reference[-rows:])):
            break
        safe = rows
    return safe
