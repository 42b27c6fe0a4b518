"""Server layers over rectangular batches: row r of a batch is page r of the cache, slot = position.

What the services do for ragged pages, training does for [rows, tokens] with PyTorch's fused
attention, so that the same layers generate text, give features and verify proposals on a GPU.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import Batch, PagedAttention
from domino_kernels.paged_kv import PagedKV

HIDDEN = -1e30


class Slots(Batch):
    """rows [R] cache pages, positions [R, T]: where each token of a rectangular batch goes."""

    def __init__(self, rows: Tensor, positions: Tensor) -> None:
        self.positions = self.offsets = positions.flatten()
        self.pages = rows[:, None].expand_as(positions).flatten()


class PromptKV(PagedKV):
    """The keys and values of the current layer alone; passed on to `cache` where there is one."""

    def __init__(self, cache: PagedKV | None = None) -> None:
        self._cache = cache

    def store(self, layer: int, pages: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v
        if self._cache is not None:
            self._cache.store(layer, pages, offsets, k, v)


class PromptAttention(PagedAttention):
    """Causal attention of R rows over themselves; right padding is seen by padding only."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, q: Tensor, kv: PagedKV, layer: int) -> Tensor:
        q, k, v = (x.view(self._rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q, kv.k, kv.v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(-1, out.shape[1] * out.shape[3])


class CachedAttention(PagedAttention):
    """T queries of each row over the first `length` slots of its page.

    seen [R, T, length] bool. Query heads of one key head are folded into the query axis.
    """

    def __init__(self, seen: Tensor, kv_heads: int, group: int, dtype: torch.dtype) -> None:
        self._rows, self._tokens, self._length = seen.shape
        self._kv_heads, self._group = kv_heads, group
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        bias = bias.masked_fill(~seen, HIDDEN)[:, None, :, None]
        size = (self._rows, kv_heads, self._tokens, group, self._length)
        if self._tokens > 1:
            bias = bias.expand(-1, -1, -1, group, -1).contiguous()
        self._bias = bias.expand(size).flatten(2, 3) if self._tokens > 1 else bias[:, :, 0]

    def __call__(self, q: Tensor, kv: PagedKV, layer: int) -> Tensor:
        dim = q.shape[-1]
        q = q.view(self._rows, self._tokens, self._kv_heads, self._group, dim).transpose(1, 2)
        q = q.reshape(self._rows, self._kv_heads, self._tokens * self._group, dim)
        k, v = (x[layer][:, :, : self._length] for x in (kv.k, kv.v))
        bias = self._bias.expand(self._rows, self._kv_heads, q.shape[2], self._length)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out = out.view(self._rows, self._kv_heads, self._tokens, self._group, dim).transpose(1, 2)
        return out.reshape(self._rows * self._tokens, -1)
