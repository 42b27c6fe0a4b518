"""Paged key/value storage: pages of a fixed number of positions, shared by many sequences."""

import torch
from torch import Tensor


class OutOfPagesError(Exception):
    """More pages were asked for than are free."""


class PageAllocator:
    """Hands out page numbers, in one ascending run where possible.

    A run lets attention read keys as a view of the pool instead of gathering them.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = bytearray(b"\1" * num_pages)  # 1 where free: runs are found as bytes are
        self.num_free = num_pages

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= self.num_free

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages; raises OutOfPagesError when fewer are free."""
        if not self.can_allocate(count):
            raise OutOfPagesError(f"{count} pages asked, {self.num_free} of {self.num_pages} free")
        pages = self._find_run(count)
        for page in pages:
            self._free[page] = 0
        self.num_free -= count
        return pages

    def release(self, pages: list[int]) -> None:
        """Gives pages back."""
        for page in pages:
            assert not self._free[page], f"page {page} released twice"
            self._free[page] = 1
        self.num_free += len(pages)

    def _find_run(self, count: int) -> list[int]:
        first = self._free.find(b"\1" * count)
        if first >= 0:
            return list(range(first, first + count))
        return [page for page, free in enumerate(self._free) if free][:count]


class PagedKV:
    """Keys and values of every layer: k, v [layers, pages, kv_heads, page_size, head_dim]."""

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        kv_heads: int,
        page_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, pages, kv_heads, page_size, head_dim)
        self.page_size = page_size
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    def store(self, layer: int, pages: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Writes k, v [n, kv_heads, head_dim] at (pages[n], offsets[n])."""
        self.k[layer][pages, :, offsets] = k
        self.v[layer][pages, :, offsets] = v
