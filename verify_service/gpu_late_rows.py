"""Rows of plain steps, projected many at once: taps of each step in, rows in their slots later.

A step of few rows reads all of the projection's weights, 168 MB with Qwen3-8B's shapes, which is 1%
of a plain step, and no draft asks for its rows while such steps follow each other.
"""

from typing import Any, Final

import torch
from torch import Tensor

from verify_service.gpu_target import GpuTarget

ROWS: Final = (16, 32, 64, 128, 256, 512)  # as many are projected at once; the last is room for all


class LateRows:
    """Taps that are not projected yet. Nothing else may write to their slots before `catch_up`."""

    def __init__(self, target: GpuTarget, table: Tensor) -> None:
        """table [slots, hidden]: where the rows go."""
        self._target, self._table = target, table
        self._taps = table.new_zeros(ROWS[-1], target.num_taps * table.shape[1])
        self._slots = torch.full((ROWS[-1],), -1, dtype=torch.int32, device=table.device)
        self._held = 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def keep(self, taps: Tensor, slots: Tensor) -> None:
        """taps [n, K * hidden], slots [n] int32 of one step, n at most ROWS[-1]; copied."""
        if self._held + len(slots) > ROWS[-1]:
            self.catch_up()
        here = slice(self._held, self._held + len(slots))
        self._taps[here].copy_(taps)
        self._slots[here].copy_(slots)
        self._held = here.stop

    def catch_up(self) -> None:
        """Writes every row that is owed."""
        if not self._held:
            return
        rows = next(rows for rows in ROWS if self._held <= rows)
        self._held = 0
        if graph := self._graphs.get(rows):
            graph.replay()
        else:
            self._project(rows)

    def capture(self, pool: Any) -> None:
        """A graph for each number of rows, the largest first."""
        for rows in reversed(ROWS):
            self._project(rows)  # compiles what is missing
            torch.cuda.synchronize(self._table.device)
            graph = self._graphs[rows] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self._project(rows)

    def _project(self, rows: int) -> None:
        slots = self._slots[:rows]
        self._target.project(self._taps[:rows], self._table, slots)
        slots.fill_(-1)  # what only fills the next graph's rows goes nowhere
