"""Rows and blocks of a pass at fixed addresses: parts in, the tensors that every kernel reads out.

A row that only fills a bucket has no slot (-1), sees no key and belongs to no session.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domino_kernels.gpu.attention import Queries, pieces
from domino_kernels.gpu.hand_over import DraftInputs, Verified, hand_over
from draft_service.executor import Part
from draft_service.gpu_index import Ints, appended, edges, slots_of
from draft_service.gpu_model import Blocks, GpuDraft, Rows

Shapes = dict[str, tuple[int, int]]


class Bucket:
    """Rows and blocks of up to `batch` sessions, of whose blocks `count` rows are used.

    room: appended rows there can be. current: [batch], the blocks' first ids.
    """

    def __init__(
        self, model: GpuDraft, batch: int, count: int, *, pages: int, page_size: int
    ) -> None:
        """pages: of a session, at most."""
        config, device = model.config, model.device
        self.batch, self.count, self.room = batch, count, batch * (count + 1)
        self._rules, self._last_rule, self._page_size = model.rules, model.last_rule, page_size
        self._used = slice(0, count) if config.shift_label else slice(1, count + 1)
        shapes = self._shapes(config.block_size)
        size = sum(rows * columns for rows, columns in shapes.values())
        pin = device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=pin)
        self._sent = torch.zeros(size, dtype=torch.int32, device=device)
        self._host_table = torch.zeros(batch, pages, dtype=torch.int32, pin_memory=pin)
        self._table = torch.zeros(batch, pages, dtype=torch.int32, device=device)
        self._known: list[list[int]] = [[] for _ in range(batch)]
        rows = (self.room, config.hidden_size)
        self._host_rows = torch.zeros(rows, dtype=model.dtype, pin_memory=pin)
        self.projected = torch.zeros(rows, dtype=model.dtype, device=device)
        self._index = {name: view.numpy() for name, view in _views(self._host, shapes).items()}
        self._index["ids"][:] = config.mask_token_id
        there = _views(self._sent, shapes)
        self.current = there["ids"][:, 0]
        self.appended = Rows(positions=there["new_positions"][0], slots=there["new_slots"][0])
        self.blocks = self._blocks(model, there)
        self._inputs = self._inputs_of(there, config.mask_token_id)

    def _shapes(self, block: int) -> Shapes:
        """Every index by name; first and last visible keys of each rule, and of the rows used."""
        rules = range(len(self._rules))
        edge = [f"{side}_{rule}" for rule in rules for side in ("first", "last")]
        shapes = dict.fromkeys(("ids", "positions", "slots", *edge), (self.batch, block))
        shapes |= dict.fromkeys(("used_first", "used_last"), (self.batch, self.count))
        return shapes | dict.fromkeys(("new_positions", "new_slots"), (1, self.room))

    def _blocks(self, model: GpuDraft, there: dict[str, Tensor]) -> Blocks:
        rules = range(len(self._rules))
        each = [self._queries(model, r, there[f"first_{r}"], there[f"last_{r}"]) for r in rules]
        used = self._queries(model, self._last_rule, there["used_first"], there["used_last"])
        group = model.shape.heads // model.shape.kv_heads

        def splits(q: Queries) -> int:
            programs, rows = len(q.tiles) * model.shape.kv_heads, q.tile_rows * group
            return pieces(programs, rows, model.shape.head_dim)

        return Blocks(
            ids=there["ids"],
            rows=Rows(positions=there["positions"].flatten(), slots=there["slots"].flatten()),
            queries=tuple(each),
            splits=splits(each[0]),
            used=self._used,
            used_queries=used,
            used_splits=splits(used),
        )

    def _inputs_of(self, there: dict[str, Tensor], mask_id: int) -> DraftInputs:
        rules = range(len(self._rules))
        return DraftInputs(
            ids=there["ids"],
            positions=there["positions"],
            slots=there["slots"],
            rules=self._rules,
            edges=[(there[f"first_{r}"], there[f"last_{r}"]) for r in rules],
            used=self._used,
            used_edges=(there["used_first"], there["used_last"]),
            used_rule=self._last_rule,
            rows=self.projected,
            new_positions=self.appended.positions,
            new_slots=self.appended.slots,
            table=self._table,
            page_size=self._page_size,
            mask_id=mask_id,
        )

    def take_over(self, parts: Sequence[Part], verified: Verified) -> Tensor:
        """As `fill`, but rows and current tokens come from a verify step on the same device.

        What it took, as `hand_over` tells it.
        """
        self._send_tables(parts)
        return hand_over(verified, self._inputs, len(parts))

    def _queries(self, model: GpuDraft, rule: int, first: Tensor, last: Tensor) -> Queries:
        """first, last [batch, rows]: what each row sees under the rule."""
        rows = last.shape[1]
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
            first=None if self._rules[rule].window is None else first.flatten(),
        )

    def fill(self, parts: Sequence[Part], rows: Tensor | None) -> None:
        """Sends up to `batch` parts that draft, and their new rows [n, hidden], n <= room."""
        self._send_tables(parts)
        start = np.zeros((self.batch, 1), np.int32)
        for b, part in enumerate(parts):
            assert part.current is not None, "a bucket's parts draft"
            self._index["ids"][b, 0], start[b] = part.current, part.end
        self._fill_blocks(start, np.arange(self.batch)[:, None] < len(parts))
        self._fill_appended(parts, rows)
        self._sent.copy_(self._host, non_blocking=True)

    def _send_tables(self, parts: Sequence[Part]) -> None:
        """Where it differs from the last step's."""
        table, renewed = self._host_table.numpy(), False
        for b, part in enumerate(parts):
            if self._known[b] != part.pages:
                self._known[b], renewed = list(part.pages), True
                table[b, : len(part.pages)] = part.pages
        if renewed:
            self._table.copy_(self._host_table, non_blocking=True)

    def _fill_blocks(self, start: Ints, live: NDArray[np.bool_]) -> None:
        """start [batch, 1]: first position of each block; live [batch, 1]: which there are."""
        index, table = self._index, self._host_table.numpy()
        positions = index["positions"]
        column = np.arange(positions.shape[1], dtype=np.int32)
        positions[:] = np.where(live, start + column, 0)
        index["slots"][:] = np.where(live, slots_of(table, positions, self._page_size), -1)
        for r, rule in enumerate(self._rules):
            first, last = edges(rule, start, positions)
            index[f"first_{r}"][:], index[f"last_{r}"][:] = first, np.where(live, last, 0)
        for side in ("first", "last"):
            index[f"used_{side}"][:] = index[f"{side}_{self._last_rule}"][:, self._used]

    def _fill_appended(self, parts: Sequence[Part], rows: Tensor | None) -> None:
        positions, slots = self._index["new_positions"][0], self._index["new_slots"][0]
        slots[:] = -1
        if rows is not None and len(rows):
            n = len(rows)
            table = self._host_table.numpy()
            positions[:n], slots[:n] = appended(parts, table, self._page_size)
            ready = rows.is_cuda or rows.is_pinned()
            here = rows if ready else _copied(rows, self._host_rows[:n])
            self.projected[:n].copy_(here, non_blocking=True)


def _views(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Parts of a flat tensor, one after another, in these shapes."""
    parts = torch.split(flat, [rows * columns for rows, columns in shapes.values()])
    return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def _copied(rows: Tensor, to: Tensor) -> Tensor:
    """`to` with the bytes of rows; torch's own copy would wake a thread on every core."""
    np.copyto(to.view(torch.int16).numpy(), rows.view(torch.int16).numpy())
    return to
