"""The Domino rollout over the full vocabulary, run by one call."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from domino_kernels.native.argmax import BLOCK
from domino_kernels.native.library import library
from domino_kernels.native.linear import LinearStruct, NativeLinear, pointer
from domino_kernels.native.pool import pool

SIZES = ("hidden", "width", "bottleneck", "vocab")
LINEARS = ("lm_head", "gru_in", "gru_state", "from_hidden", "from_state", "to_vocab")


class HeadStruct(ctypes.Structure):
    """`head` of rollout.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in SIZES),
        ("embedding", ctypes.c_void_p),
        *((name, LinearStruct) for name in LINEARS),
    )


class RolledOut(NamedTuple):
    """tokens [n, batch], -1 for a row with a NaN; the scores [n, batch, vocab] and the GRU states
    [n, batch, width] they were made from (step 0 is scored without one).

    chances [n, batch]: the head's own word for a token and all before it. Below the threshold they
    are void, and so is all else of their step or of a later one.
    """

    tokens: Tensor
    scores: Tensor
    states: Tensor
    chances: Tensor


class NativeRollout:
    """The linear layers by their names in LINEARS; embedding [vocab, hidden] float32."""

    def __init__(self, embedding: Tensor, **linears: NativeLinear) -> None:
        self._kept = embedding.contiguous(), linears
        self._hidden, self._width = embedding.shape[1], linears["gru_state"].struct.inputs
        self._bottleneck, self._vocab = linears["to_vocab"].struct.inputs, len(embedding)
        self._struct = HeadStruct(
            *(self._hidden, self._width, self._bottleneck, self._vocab),
            self._kept[0].data_ptr(),
            *(linears[name].struct for name in LINEARS),
        )
        loaded = library()
        assert loaded is not None, "made only where the library is"
        self._call = loaded.domino_rollout

    def run(self, z: Tensor, current: Tensor, threshold: float = 0.0) -> "RolledOut":
        """z [n, batch, hidden], current [batch]; threshold: of the chances, 0 makes none."""
        steps, batch, _ = z.shape
        z, current = z.contiguous(), current.contiguous()
        scores = z.new_empty(steps, batch, self._vocab)
        states = z.new_empty(steps, batch, self._width)
        tokens, chances = torch.zeros(steps, batch, dtype=torch.int64), z.new_zeros(steps, batch)
        size = steps * self._bottleneck + self._hidden + 7 * self._width
        scratch = z.new_zeros(batch * (size + 2 * -(-self._vocab // BLOCK)))
        own, areas = ctypes.byref(self._struct), (z, current, scores, states, tokens)
        ends = ctypes.c_float(threshold), pointer(chances), pointer(scratch)
        self._call(pool(), own, steps, batch, *(pointer(area) for area in areas), *ends)
        return RolledOut(tokens, scores, states, chances)
