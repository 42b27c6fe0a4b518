# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Mode K of the rollout, for comparison: only the K tokens with the best base logits compete."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rollout_device import after_previous, launch_options, pack_key


@triton.jit
def _pool_kernel(state, rows, base, ids, keys, batch, state_width, POOL: tl.constexpr,
                 E: tl.constexpr, EP: tl.constexpr, T: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    request = tl.program_id(0)
    place, e = tl.program_id(1) * T + tl.arange(0, T), tl.arange(0, EP)
    s = tl.load(state + request * state_width + e, e < E, 0.0)
    at = rows + (request * POOL + place)[:, None] * E + e[None, :]
    w = tl.load(at, (place < POOL)[:, None] & (e < E)[None, :], 0.0).to(tl.float32)
    scores = tl.load(base + request * POOL + place, place < POOL, -float("inf"))
    scores += tl.sum(w * s[None, :], axis=1)
    token = tl.load(ids + request * POOL + place, place < POOL, 0).to(tl.int32)
    key = tl.max(pack_key(scores, token), axis=0)
    tl.store(keys + tl.program_id(1) * batch + request, key)


class PoolScorer:
    """One pool a request and block: ids, their W2 rows and base logits, gathered once a run."""

    def __init__(self, w2: Tensor, candidates: int, proposals: int, max_batch: int) -> None:
        self._w2, self._size = w2, candidates
        new = torch.empty
        self._rows = new(max_batch * candidates, w2.shape[1], dtype=w2.dtype, device=w2.device)
        self._base = new(max_batch * (proposals - 1) * candidates, device=w2.device)

    def select(self, base: Tensor, keys: Tensor, parts: int) -> int:
        """base [n - 1, B, V] of the steps with a correction: picks every request's pool.

        keys [parts, B]: the first token's; returns its parts, more or less of them if it must.
        """
        steps, batch, _ = base.shape
        self._ids = base.amax(0).topk(self._size, sorted=False).indices
        rows = self._rows[: batch * self._size]
        torch.index_select(self._w2, 0, self._ids.flatten(), out=rows)
        self._scores = self._base[: steps * batch * self._size].view(steps, batch, self._size)
        torch.gather(base, 2, self._ids.expand(steps, -1, -1), out=self._scores)
        return parts

    def score(self, step: int, state: Tensor, keys: Tensor) -> int:
        """step counts corrected steps from 0 -> the candidates' keys [parts, B]; returns parts."""
        tile = max(64, triton.next_power_of_2(triton.cdiv(self._size, 1024)))
        parts: int = triton.cdiv(self._size, tile)
        _pool_kernel[len(state), parts](
            state, self._rows, self._scores[step], self._ids, keys, len(state), state.stride(0),
            POOL=self._size, E=self._w2.shape[1], T=tile,
            EP=max(16, triton.next_power_of_2(self._w2.shape[1])), **launch_options(state),
        )  # fmt: skip
        return parts
