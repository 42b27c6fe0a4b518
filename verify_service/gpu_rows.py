"""The rows of one pass on a GPU: work in, the index tensors that every kernel reads out.

A slot is page * page_size + offset. A row that only fills a bucket has no slot (-1), sees no key
and belongs to no sequence.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domino_kernels.gpu.advance import advance
from domino_kernels.gpu.attention import Queries
from domino_kernels.gpu.attention_plan import AttentionPlan
from verify_service.sampling import SamplingParams, knobs_of
from verify_service.scheduler import Work

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """ids, positions, slots [n] int32; who attends to what, each tile's keys in `splits` pieces."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    queries: Queries
    splits: int


def cut(first: int, count: int, height: int, sequence: int) -> list[tuple[int, int, int]]:
    """Tiles of at most `height` rows: first row, rows, sequence."""
    end = first + count
    return [(row, min(height, end - row), sequence) for row in range(first, end, height)]


def ragged_rows(work: Seq[Work], page_size: int, plan: AttentionPlan, device: torch.device) -> Rows:
    """All positions of `work` one after the other."""
    height = plan.tile_rows(max(len(w.ids) for w in work))
    index, tiles = _ragged(work, page_size, height)
    ids, positions, slots = torch.from_numpy(index).to(device)
    most = max(len(w.sequence.pages) for w in work)
    table = np.zeros((len(work), most), dtype=np.int32)
    for row, item in zip(table, work, strict=True):
        row[: len(item.sequence.pages)] = item.sequence.pages
    queries = Queries(
        tiles=torch.tensor(tiles, dtype=torch.int32, device=device),
        tile_rows=height,
        table=torch.from_numpy(table).to(device),
        last=positions + 1,
    )
    longest = max(w.start + len(w.ids) for w in work)
    splits = plan.splits(len(tiles), height, longest)
    return Rows(ids=ids, positions=positions, slots=slots, queries=queries, splits=splits)


def _ragged(
    work: Seq[Work], page_size: int, height: int
) -> tuple[Ints, list[tuple[int, int, int]]]:
    """ids, positions and slots [3, n] of all positions of `work`, and tiles of `height` rows."""
    index = np.zeros((3, sum(len(w.ids) for w in work)), dtype=np.int32)
    tiles: list[tuple[int, int, int]] = []
    first = 0
    for sequence, item in enumerate(work):
        end = first + len(item.ids)
        pages = np.asarray(item.sequence.pages, dtype=np.int32)
        at = np.arange(item.start, item.start + len(item.ids), dtype=np.int32)
        index[0, first:end], index[1, first:end] = item.ids, at
        index[2, first:end] = pages[at // page_size] * page_size + at % page_size
        tiles += cut(first, len(item.ids), height, sequence)
        first = end
    return index, tiles


class RaggedBucket:
    """Up to `most` positions of up to `sequences` sequences, at fixed addresses on the device."""

    def __init__(
        self, most: int, sequences: int, *, pages: int, page_size: int, plan: AttentionPlan,
        device: torch.device,
    ) -> None:  # fmt: skip
        """pages: of a sequence, at most."""
        self.most, self._page_size, pin = most, page_size, device.type == "cuda"
        self._height = plan.tile_rows(most)
        tiles = most // self._height + min(sequences, most)
        size = 4 * most + 3 * tiles  # ids, positions, slots and last of each row, then the tiles
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pin)
        self._host_table = torch.zeros(sequences, pages, dtype=torch.int32, pin_memory=pin)
        self._sent = torch.zeros(size, dtype=torch.int32, device=device)
        ids, positions, slots, last = self._sent[: 4 * most].view(4, most)
        slots.fill_(-1)
        queries = Queries(
            tiles=self._sent[4 * most :].view(tiles, 3),
            tile_rows=self._height,
            table=torch.zeros(sequences, pages, dtype=torch.int32, device=device),
            last=last,
        )
        splits = plan.splits(-(-most // self._height), self._height, pages * page_size)
        self.rows = Rows(ids=ids, positions=positions, slots=slots, queries=queries, splits=splits)

    def fill(self, work: Seq[Work]) -> None:
        """Sends the positions of `work`, one after the other."""
        found, cuts = _ragged(work, self._page_size, self._height)
        host, n = self._host.numpy(), found.shape[1]
        index, tiles = host[: 4 * self.most].reshape(4, self.most), host[4 * self.most :]
        index[:], tiles[:] = np.array([[0], [0], [-1], [0]]), 0
        index[:3, :n], index[3, :n] = found, found[1] + 1
        tiles[: 3 * len(cuts)] = np.asarray(cuts, dtype=np.int32).ravel()
        for row, item in zip(self._host_table.numpy(), work, strict=False):
            row[: len(item.sequence.pages)] = item.sequence.pages
        self._sent.copy_(self._host, non_blocking=True)
        self.rows.queries.table.copy_(self._host_table, non_blocking=True)


class Bucket:
    """Rows of `batch` sequences of `width` positions each, at fixed addresses on the device."""

    def __init__(
        self, batch: int, width: int, *, pages: int, page_size: int, plan: AttentionPlan,
        device: torch.device,
    ) -> None:  # fmt: skip
        """pages: of a sequence, at most."""
        self.batch, self.width, self.page_size = batch, width, page_size
        n = batch * width
        pin = device.type == "cuda"
        # ids, positions, slots and last of each row, then each sequence's count
        self._host = torch.zeros(4 * n + batch, dtype=torch.int32, pin_memory=pin)
        self._host_table = torch.zeros(batch, pages, dtype=torch.int32, pin_memory=pin)
        self._index, self._counts = _split(self._host.numpy(), n, batch)
        self._column = np.arange(width, dtype=np.int32)[None]
        self._known: list[list[int]] = [[] for _ in range(batch)]
        self._sent = torch.zeros(4 * n + batch, dtype=torch.int32, device=device)
        table = torch.zeros(batch, pages, dtype=torch.int32, device=device)
        ids, positions, slots, last = self._sent[: 4 * n].view(4, n)
        slots.fill_(-1)
        self.counts, self._moving = self._sent[4 * n :], self._sent[: 4 * n].view(4, n)
        self._host_knobs = torch.zeros(batch, 5, dtype=torch.float64, pin_memory=pin)
        self.knobs = torch.zeros(batch, 5, dtype=torch.float64, device=device)
        self._sampling: list[SamplingParams | None] = [None] * batch
        self._copied = torch.cuda.Event() if pin else None  # type: ignore[no-untyped-call]
        height = plan.tile_rows(width)
        tiles = [tile for b in range(batch) for tile in cut(b * width, width, height, b)]
        queries = Queries(
            tiles=torch.tensor(tiles, dtype=torch.int32, device=device),
            tile_rows=height,
            table=table,
            last=last,
        )
        splits = plan.splits(len(tiles), height, pages * page_size)
        self.rows = Rows(ids=ids, positions=positions, slots=slots, queries=queries, splits=splits)

    def fill(self, work: Seq[Work], proposals: Tensor | None = None) -> None:
        """Sends the positions of `work`, at most `batch` items of at most `width` ids.

        proposals [>= items, any] on the device: the ids behind each first one, in place of work's.
        """
        self._wait_for_last()
        ids, positions, slots, last = self._index.reshape(4, self.batch, self.width)
        table, starts, renewed = self._host_table.numpy(), np.zeros(self.batch, np.int32), False
        self._counts[:] = 0
        for b, item in enumerate(work):
            pages, count = item.sequence.pages, len(item.ids)
            if self._known[b] != pages:
                self._known[b], renewed = list(pages), True
                table[b, : len(pages)] = pages
            ids[b, :count], starts[b], self._counts[b] = item.ids, item.start, count
        used = self._column < self._counts[:, None]
        positions[:] = np.where(used, starts[:, None] + self._column, 0)
        pages_of = np.take_along_axis(table, positions // self.page_size, 1)
        slots[:] = np.where(used, pages_of * self.page_size + positions % self.page_size, -1)
        last[:] = np.where(used, positions + 1, 0)
        self._sent.copy_(self._host, non_blocking=True)
        if renewed:
            self.rows.queries.table.copy_(self._host_table, non_blocking=True)
        self._fill_knobs([item.sequence.request.sampling for item in work])
        if self._copied:
            self._copied.record()
        if proposals is not None:
            there = self.rows.ids.view(self.batch, self.width)[: len(work), 1:]
            most = min(there.shape[1], proposals.shape[1])
            there[:, :most].copy_(proposals[: len(work), :most])

    def _wait_for_last(self) -> None:
        """The host's arrays may be written again once they were copied."""
        if self._copied:
            self._copied.synchronize()

    def _fill_knobs(self, sampling: list[SamplingParams | None]) -> None:
        """Sends what differs from the last step's."""
        if self._sampling[: len(sampling)] == sampling:
            return
        self._sampling[: len(sampling)] = sampling
        self._host_knobs.numpy()[: len(sampling)] = knobs_of(sampling)
        self.knobs.copy_(self._host_knobs, non_blocking=True)

    def move_on(self, out: Tensor) -> None:
        """The positions after the last ones, each with the id chosen in `out` [batch, 3]."""
        assert self.width == 1, "who goes on where is known of plain steps only"
        advance(out, self.rows.queries.table, self._moving, self.page_size)


def _split(host: Ints, n: int, batch: int) -> tuple[Ints, Ints]:
    return host[: 4 * n].reshape(4, n), host[4 * n : 4 * n + batch]
