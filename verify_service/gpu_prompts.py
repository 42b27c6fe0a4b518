"""Chunks of prompts as CUDA graphs: work in, the normed hidden states of all its positions out.

A graph takes any positions of any sequences up to its number of rows; what is missing sees no key
and is stored nowhere. What no graph takes runs by single launches of the same kernels.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from domino_kernels.paged_kv import PagedKV
from verify_service.gpu_rows import RaggedBucket, ragged_rows
from verify_service.gpu_target import GpuTarget
from verify_service.scheduler import Work

LEAST, MOST, SEQUENCES = 64, 2048, 32  # rows of the graphs, sequences in one

log = logging.getLogger(__name__)


def row_buckets(prefill_tokens: int) -> list[int]:
    """Numbers of rows with a graph, up to what prompts get in a step: powers of 2, and from 256 on
    those halfway between, since rows that only fill a graph cost as much as others."""
    most = min(prefill_tokens, MOST)
    doubled = [LEAST << i for i in range(6)]
    sizes = sorted([*doubled, *(3 * rows // 2 for rows in doubled if rows >= 256)])
    return [*(rows for rows in sizes if rows < most), most] if most else []


class PromptGraphs:
    """Graphs of prompts' passes, captured at start.

    A deterministic target has none: its attention would need room for parts of the longest context
    there can be, where single launches need it for the longest there is.
    """

    def __init__(
        self, target: GpuTarget, kv: PagedKV, table: Tensor | None, *, pages: int,
        rows: Seq[int],
    ) -> None:  # fmt: skip
        """pages: of a sequence, at most; table: where projected rows go."""
        self._target, self._kv, self._table, self._pages = target, kv, table, pages
        self._rows = [] if target.plan.cuts else sorted(rows)
        self._passes: list[_Pass] = []

    def capture(self, pool: Any) -> None:
        """Captures every pass, the largest first, and logs what it took."""
        began, before = time.monotonic(), torch.cuda.memory_reserved(self._target.device)
        for rows in reversed(self._rows):
            self._passes.insert(0, _Pass(self._target, self._kv, self._table, self._pages, rows))
            self._passes[0].capture(pool)
        took = torch.cuda.memory_reserved(self._target.device) - before
        log.info(
            "captured prompts of %s rows in %.1f s, %.2f GiB",
            self._rows,
            time.monotonic() - began,
            took / 2**30,
        )

    def fit(self, work: Seq[Work]) -> bool:
        """Whether a graph takes all of `work`."""
        rows = sum(len(item.ids) for item in work)
        return bool(self._passes) and rows <= self._rows[-1] and len(work) <= SEQUENCES

    def run(self, work: Seq[Work]) -> Tensor:
        """Normed last hidden states of the positions of `work` in order, until the next pass."""
        if not self.fit(work):
            target = self._target
            rows = ragged_rows(work, self._kv.page_size, target.plan, target.device)
            return target.forward(rows, self._kv, self._table)
        count = sum(len(item.ids) for item in work)
        return self._passes[bisect_left(self._rows, count)].run(work)


class _Pass:
    """One number of rows."""

    def __init__(
        self, target: GpuTarget, kv: PagedKV, table: Tensor | None, pages: int, rows: int
    ) -> None:
        self._target, self._kv, self._table = target, kv, table
        self._bucket = RaggedBucket(
            rows,
            SEQUENCES,
            pages=pages,
            page_size=kv.page_size,
            plan=target.plan,
            device=target.device,
        )

    def capture(self, pool: Any) -> None:
        self._forward()
        torch.cuda.synchronize(self._target.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._normed = self._forward()

    def run(self, work: Seq[Work]) -> Tensor:
        self._bucket.fill(work)
        self._graph.replay()
        return self._normed

    def _forward(self) -> Tensor:
        return self._target.forward(self._bucket.rows, self._kv, self._table)
