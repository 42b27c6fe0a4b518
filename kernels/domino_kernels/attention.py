"""Paged attention for ragged batches: split over pages, then merged by their softmax mass.

Scores and sums are float32. Each page is one matrix product of a fixed shape, and a page that a
query cannot see merges with weight zero: a query's result has the same bits whatever the batch, the
width or the length around it. This is the CPU path and the reference of the CUDA kernel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.paged_kv import PagedKV

# Below this many multiplications a product of matrices takes another code path on a CPU, and BLAS
# libraries do below a few rows (6 were safe everywhere): queries are padded beyond both, or a
# query's bits would depend on the width.
SMALL_PRODUCT = 400
MIN_ROWS = 6
VECTOR = 16  # floats, the widest vector register's
MASKED = -1e30  # finite, so that a page without any visible key stays free of NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`count` positions of one sequence, from `start`; `pages` hold its positions from 0."""

    start: int
    count: int
    pages: Sequence[int]

    @property
    def end(self) -> int:
        """First position after the span."""
        return self.start + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Which keys a span's queries see; the query's own position counts as one of a window.

    causal: none behind the query. window: at most so many positions back, counted from the query;
    with window_moves=False from so many before the span's first query on, for all of it alike.
    """

    causal: bool
    window: int | None = None
    window_moves: bool = True

    def keys(self, span: Span) -> tuple[list[int], list[int]]:
        """Per query of the span: its first visible key, and the one behind its last."""
        queries = range(span.start, span.end)
        last = [q + 1 for q in queries] if self.causal else [span.end] * span.count
        if self.window is None:
            return [0] * span.count, last
        if not self.window_moves:
            return [max(0, span.start - self.window)] * span.count, last
        return [max(0, q + 1 - self.window) for q in queries], last

    def mask(self, span: Span, keys: int) -> Tensor:
        """The same as a mask [span.count, keys]."""
        first, last = (torch.tensor(edge)[:, None] for edge in self.keys(span))
        key = torch.arange(keys)
        return (key >= first) & (key < last)


causal = Visibility(causal=True)


class Batch:
    """Positions, page slots and row ranges of the spans of one forward pass."""

    def __init__(self, spans: Sequence[Span], page_size: int, device: torch.device) -> None:
        self.spans = spans
        self.page_size = page_size
        positions = [p for span in spans for p in range(span.start, span.end)]
        pages = [s.pages[p // page_size] for s in spans for p in range(s.start, s.end)]
        self.positions = torch.tensor(positions, device=device)
        self.pages = torch.tensor(pages, device=device)
        self.offsets = self.positions % page_size
        self.rows: list[slice] = []
        first = 0
        for span in spans:
            self.rows.append(slice(first, first + span.count))
            first += span.count


class PagedAttention:
    """Attention of one batch under one visibility rule; built once, used by every layer."""

    def __init__(
        self,
        batch: Batch,
        visible: Visibility,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        self._batch = batch
        self._kv_heads = kv_heads
        self._group = heads // kv_heads
        self._dtype = dtype
        self._min_rows = max(MIN_ROWS, -(-SMALL_PRODUCT // (batch.page_size * head_dim)))
        device = batch.positions.device
        self._pages = [_used_pages(span, batch.page_size, device) for span in batch.spans]
        self._masks = [self._mask(span, visible, device) for span in batch.spans]

    def __call__(self, q: Tensor, kv: PagedKV, layer: int) -> Tensor:
        """q [n, heads, head_dim] -> [n, heads * head_dim]; the batch's own K/V are stored."""
        k, v = kv.k[layer], kv.v[layer]
        parts = [
            self._attend(q[rows], k[pages], v[pages], mask)
            for rows, pages, mask in zip(self._batch.rows, self._pages, self._masks, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        count, heads, dim = q.shape
        pages, kv_heads, page_size, _ = k.shape
        rows, used = mask.shape[1], count * self._group
        q = q.view(count, kv_heads, self._group, dim).transpose(0, 1).reshape(kv_heads, used, dim)
        q = F.pad(q.float(), (0, 0, 0, rows - used)) if used < rows else q.float()
        q = q.expand(pages, kv_heads, rows, dim).reshape(pages * kv_heads, rows, dim)
        k = k.reshape(pages * kv_heads, page_size, dim).float()
        v = v.reshape(pages * kv_heads, page_size, dim).float()
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=dim**-0.5)
        shares = scores.softmax(-1)
        out = torch.bmm(shares, v)
        if pages > 1:
            weights = _page_weights(scores, shares, pages).view(pages, kv_heads, rows, 1)
            out = _sum_in_order(weights * out.view(pages, kv_heads, rows, dim))
        out = out.view(kv_heads, rows, dim)[:, :used]
        out = out.reshape(kv_heads, count, self._group, dim).transpose(0, 1)
        return out.reshape(count, heads * dim).to(self._dtype)

    def _mask(self, span: Span, visible: Visibility, device: torch.device) -> Tensor:
        """[pages * kv_heads, rows, page_size]: 0 where visible, MASKED elsewhere.

        rows is count * group, or the least that is safe; the rows added see everything.
        """
        size, used = self._batch.page_size, span.count * self._group
        pages = _num_pages(span, size)
        seen = visible.mask(span, pages * size).to(device)
        bias = torch.zeros(seen.shape, device=device).masked_fill_(~seen, MASKED)
        bias = bias.view(span.count, pages, size).transpose(0, 1).repeat_interleave(self._group, 1)
        mask = bias.new_zeros(pages, self._kv_heads, max(used, self._min_rows), size)
        mask[:, :, :used] = bias[:, None]
        return mask.flatten(0, 1)


def _page_weights(scores: Tensor, shares: Tensor, pages: int) -> Tensor:
    """Share of each page in its query's softmax over all pages: [pages, kv_heads * rows].

    A row's sum of exp(score - max) is 1 / max(share), which saves a pass over the scores. The
    exponentials are a softmax over whole vectors of the last dimension, because both elementwise
    exp and a softmax's sum give other bits in the remainder behind the last whole vector.
    """
    top = F.pad(scores.amax(-1).view(pages, -1).T, (0, -pages % VECTOR), value=MASKED)
    weights = top.softmax(-1).T[:pages] / shares.amax(-1).view(pages, -1)
    return weights / _sum_in_order(weights)


def _sum_in_order(parts: Tensor) -> Tensor:
    """Sum over the first dimension, page after page; torch.sum's order varies with the sizes."""
    return reduce(torch.add, parts.unbind(0))


def _num_pages(span: Span, page_size: int) -> int:
    return -(-span.end // page_size)


def _used_pages(span: Span, page_size: int, device: torch.device) -> slice | Tensor:
    used = list(span.pages[: _num_pages(span, page_size)])
    if used == list(range(used[0], used[0] + len(used))):
        return slice(used[0], used[0] + len(used))
    return torch.tensor(used, device=device)
