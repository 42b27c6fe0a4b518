"""The index tensors of a pass on a GPU: parts in, what every kernel reads out, at fixed addresses.

A row that only fills a bucket has no slot (-1), sees no key and belongs to no session.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domino_kernels.attention import Visibility
from domino_kernels.gpu.attention import Queries, pieces
from draft_service.executor import Part
from draft_service.gpu_model import Blocks, GpuDraft, Rows

Ints = NDArray[np.int32]


def slots_of(table: Ints, positions: Ints, page_size: int) -> Ints:
    """Pages [.., pages] of a session and positions [.., n] in it -> their slots [.., n]."""
    pages = np.take_along_axis(table, positions // page_size, -1)
    slots: Ints = pages * page_size + positions % page_size
    return slots


def page_table(parts: Sequence[Part]) -> Ints:
    """Each part's pages [parts, most pages], zeros behind them."""
    table = np.zeros((len(parts), max(len(part.pages) for part in parts)), np.int32)
    for row, part in zip(table, parts, strict=True):
        row[: len(part.pages)] = part.pages
    return table


def appended(parts: Sequence[Part], table: Ints, page_size: int) -> tuple[Ints, Ints]:
    """Positions and slots of the parts' new rows, one part after the other; table [>= parts, ..]"""
    counts = np.array([part.num_rows for part in parts])
    starts = np.array([part.start for part in parts], np.int32) - (counts.cumsum() - counts)
    part = np.repeat(np.arange(len(parts)), counts)
    positions = (starts[part] + np.arange(len(part))).astype(np.int32)
    slots: Ints = table[part, positions // page_size] * page_size + positions % page_size
    return positions, slots


def edges(rule: Visibility, start: Ints, positions: Ints) -> tuple[Ints, Ints]:
    """Visibility.keys of many blocks: start [n, 1], positions [n, block] -> first, last alike."""
    end = positions[:, -1:] + 1
    last = positions + 1 if rule.causal else np.broadcast_to(end, positions.shape)
    if rule.window is None:
        return np.zeros_like(positions), last
    first = positions + 1 - rule.window if rule.window_moves else start - rule.window
    return np.broadcast_to(np.maximum(first, 0), positions.shape), last


class Bucket:
    """Rows and blocks of up to `batch` sessions, of whose blocks `count` rows are used."""

    def __init__(
        self, model: GpuDraft, batch: int, count: int, *, pages: int, page_size: int
    ) -> None:
        """pages: of a session, at most. Room for count + 1 appended rows a session."""
        config, device = model.config, model.device
        block, rules = config.block_size, len(model.rules)
        self.batch, self.count, self.room = batch, count, batch * (count + 1)
        self._rules, self._last_rule, self._page_size = model.rules, model.last_rule, page_size
        self._used = slice(0, count) if config.shift_label else slice(1, count + 1)
        self._shapes = [(batch, block)] * (3 + 2 * rules) + [(batch, count)] * 2
        self._shapes += [(1, self.room)] * 2
        sizes = [rows * columns for rows, columns in self._shapes]
        pin = device.type == "cuda"
        self._host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pin)
        self._host_table = torch.zeros(batch, pages, dtype=torch.int32, pin_memory=pin)
        self._sent = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._table = torch.zeros(batch, pages, dtype=torch.int32, device=device)
        self._known: list[list[int]] = [[] for _ in range(batch)]
        shape = (self.room, config.hidden_size)
        self._host_rows = torch.zeros(shape, dtype=model.dtype, pin_memory=pin)
        self.projected = torch.zeros(shape, dtype=model.dtype, device=device)
        on_host, on_device = (
            [t.view(s) for t, s in zip(torch.split(x, sizes), self._shapes, strict=True)]
            for x in (self._host, self._sent)
        )
        self._index: list[Ints] = [x.numpy() for x in on_host]
        self._index[0][:] = config.mask_token_id
        self.current = on_device[0][:, 0]
        self.appended = Rows(positions=on_device[-2][0], slots=on_device[-1][0])
        self.blocks = self._blocks(model, on_device)

    def _blocks(self, model: GpuDraft, index: list[Tensor]) -> Blocks:
        block, rules = model.config.block_size, len(self._rules)

        def queries(rows: int, first: Tensor, last: Tensor, windowed: bool) -> Queries:
            height = model.tile_rows(rows)
            tiles = [
                (b * rows + row, min(height, rows - row), b)
                for b in range(self.batch)
                for row in range(0, rows, height)
            ]
            return Queries(
                tiles=torch.tensor(tiles, dtype=torch.int32, device=model.device),
                tile_rows=height,
                table=self._table,
                last=last.flatten(),
                first=first.flatten() if windowed else None,
            )

        windowed = [rule.window is not None for rule in self._rules]
        each = [
            queries(block, index[3 + 2 * r], index[4 + 2 * r], windowed[r]) for r in range(rules)
        ]
        used = queries(self.count, index[-4], index[-3], windowed[self._last_rule])
        group = model.shape.heads // model.shape.kv_heads

        def splits(q: Queries) -> int:
            return pieces(len(q.tiles) * model.shape.kv_heads, q.tile_rows * group)

        return Blocks(
            ids=index[0],
            rows=Rows(positions=index[1].flatten(), slots=index[2].flatten()),
            queries=tuple(each),
            splits=splits(each[0]),
            used=self._used,
            used_queries=used,
            used_splits=splits(used),
        )

    def fill(self, parts: Sequence[Part], rows: Tensor | None) -> None:
        """Sends up to `batch` parts that draft, and their new rows [n, hidden], n <= room."""
        ids, positions, slots = self._index[:3]
        live = np.arange(self.batch)[:, None] < len(parts)
        start = np.zeros((self.batch, 1), np.int32)
        table, renewed = self._host_table.numpy(), False
        for b, part in enumerate(parts):
            assert part.current is not None, "a bucket's parts draft"
            ids[b, 0], start[b] = part.current, part.end
            if self._known[b] != part.pages:
                self._known[b], renewed = list(part.pages), True
                table[b, : len(part.pages)] = part.pages
        positions[:] = np.where(live, start + np.arange(ids.shape[1], dtype=np.int32), 0)
        slots[:] = np.where(live, slots_of(table, positions, self._page_size), -1)
        for r, rule in enumerate(self._rules):
            first, last = edges(rule, start, positions)
            self._index[3 + 2 * r][:], self._index[4 + 2 * r][:] = first, np.where(live, last, 0)
        for used, whole in ((-4, 3), (-3, 4)):
            self._index[used][:] = self._index[whole + 2 * self._last_rule][:, self._used]
        self._fill_appended(parts, rows)
        self._sent.copy_(self._host, non_blocking=True)
        if renewed:
            self._table.copy_(self._host_table, non_blocking=True)

    def _fill_appended(self, parts: Sequence[Part], rows: Tensor | None) -> None:
        positions, slots = self._index[-2][0], self._index[-1][0]
        slots[:] = -1
        if rows is not None and len(rows):
            n = len(rows)
            table = self._host_table.numpy()
            positions[:n], slots[:n] = appended(parts, table, self._page_size)
            here = rows if rows.is_cuda else _copied(rows, self._host_rows[:n])
            self.projected[:n].copy_(here, non_blocking=True)


def _copied(rows: Tensor, to: Tensor) -> Tensor:
    """`to` with the bytes of rows; torch's own copy would wake a thread on every core."""
    np.copyto(to.view(torch.int16).numpy(), rows.view(torch.int16).numpy())
    return to
