"""One pass of the draft on a GPU: graphs for the parts that draft, single launches for the rest."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from domino_kernels.gpu.hand_over import Verified
from domino_kernels.paged_kv import PagedKV
from domino_kernels.readback import sent
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part
from draft_service.gpu_begin import BegunStep, compile_begin
from draft_service.gpu_index import Ints, appended, page_table
from draft_service.gpu_model import GpuDraft, Rows
from draft_service.gpu_step import Rollouts, Step, StepGraphs, batch_buckets, count_buckets
from serving.draft_config import DraftConfig

# Rows outside graphs for which products are compiled at start: a short prompt, or a draft that
# rested and lacks some, would wait 40 ms.
OUTSIDE = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Drafting:
    """Parts of one mode, their places in the pass, and the step that drafts for them."""

    places: Sequence[int]
    parts: Sequence[Part]
    step: Step

    @property
    def takes_rows(self) -> bool:
        """Whether the step has room for the parts' new rows: not for a prompt's."""
        return sum(part.num_rows for part in self.parts) <= self.step.bucket.room


class GpuExecutor:
    """Owns the draft KV and the step graphs.

    num_graph, num_eager: parts run by a graph, and by single launches (rows of prompts, and of
    steps without a draft), since start. On a CPU, under Triton's interpreter, nothing is captured.
    """

    def __init__(
        self, model: GpuDraft, rollouts: Rollouts, kv: PagedKV, *, max_sessions: int
    ) -> None:
        """Captures every graph; raises torch.OutOfMemoryError when they do not fit."""
        self._model, self._rollouts, self._kv = model, rollouts, kv
        config = model.config
        self._graphs = StepGraphs(
            model,
            rollouts,
            kv,
            pages=min(kv.k.shape[1], -(-config.max_context // kv.page_size)),
            batches=batch_buckets(max_sessions),
            counts=count_buckets(config.max_draft_tokens),
        )
        self.num_graph = self.num_eager = 0
        self._captured = model.device.type == "cuda"
        if self._captured:
            torch.cuda.set_device(model.device)  # of this thread; kernels are launched on it
            with torch.inference_mode():
                self._graphs.capture()
                compile_begin(self._graphs.holding(next(iter(rollouts)), 1, 1), model)
                for rows in OUTSIDE:
                    nowhere = np.array([[0], [-1]], np.int32).repeat(rows, axis=1)
                    self._store(torch.zeros(rows, config.hidden_size, dtype=model.dtype), nowhere)

    @property
    def kv(self) -> PagedKV:
        """Draft KV of every session."""
        return self._kv

    @property
    def config(self) -> DraftConfig:
        """The draft's."""
        return self._model.config

    @property
    def modes(self) -> Collection[spec.Mode.ValueType]:
        """What this checkpoint can run."""
        return self._rollouts.keys()

    @torch.inference_mode()
    def run(
        self, parts: Sequence[Part], rows: Tensor | None, timings: draft_pb2.DraftTimings
    ) -> list[list[int]]:
        """rows [n, hidden] -> each part's proposals: at least as many as it asks for, or none.

        A graph's time cannot be told apart: all of it is backbone_ns.
        """
        began = time.monotonic_ns()
        batches = list(self._batches(parts))
        inside = {i for batch in batches if batch.takes_rows for i in batch.places}
        outside = [part for i, part in enumerate(parts) if part.num_rows and i not in inside]
        self._append(outside, rows)
        timings.append_ns = time.monotonic_ns() - began
        began = time.monotonic_ns()
        proposals: list[list[int]] = [[] for _ in parts]
        for batch in batches:
            taken = _rows_of(batch.parts, rows) if batch.takes_rows else None
            found = batch.step.run(batch.parts, taken)
            for i, ids in zip(batch.places, found, strict=True):
                proposals[i] = ids
        timings.backbone_ns = time.monotonic_ns() - began
        self._count(len(outside), sum(len(batch.places) for batch in batches))
        return proposals

    @torch.inference_mode()
    def begin(self, parts: Sequence[Part], verified: Verified, count: int) -> BegunStep | None:
        """Starts blocks of `count` proposals behind a verify step, for parts of one mode that stand
        where it began; None where no graph takes them."""
        if len(parts) > self._graphs.most or verified.out.device != self._model.device:
            return None
        step = self._graphs.holding(parts[0].mode, len(parts), count)
        self._count(0, len(parts))
        return BegunStep(step, parts, verified)

    def _batches(self, parts: Sequence[Part]) -> Iterator[Drafting]:
        """The parts that draft, by mode, no more at a time than a graph takes."""
        for mode in self._rollouts:
            asking = [i for i, p in enumerate(parts) if p.current is not None and p.mode == mode]
            for first in range(0, len(asking), self._graphs.most):
                places = asking[first : first + self._graphs.most]
                some = [parts[i] for i in places]
                yield Drafting(places, some, self._graphs.chosen(mode, some))

    def _count(self, appended: int, drafted: int) -> None:
        self.num_graph += drafted if self._captured else 0
        self.num_eager += appended + (0 if self._captured else drafted)

    def _append(self, parts: Sequence[Part], all_rows: Tensor | None) -> None:
        rows = _rows_of(parts, all_rows)
        if rows is not None:
            index = appended(parts, page_table(parts), self._kv.page_size)
            self._store(rows, np.stack(index))

    def _store(self, rows: Tensor, index: Ints) -> None:
        """rows [n, hidden] in layers' KV; index [2, n]: their positions and slots."""
        device = self._model.device
        positions, slots = sent(index, device)
        rows = rows.to(device)
        # Rows that no host has seen yet may be no numbers: they are stored nowhere.
        slots = torch.where(rows.isfinite().all(-1), slots, -1)
        self._model.append(rows, Rows(positions=positions, slots=slots), self._kv)


def _rows_of(parts: Sequence[Part], rows: Tensor | None) -> Tensor | None:
    """The parts' new rows one after another, None where there are none."""
    slices = [part.rows for part in parts if part.num_rows]
    if rows is None or not slices:
        return None
    if all(a.stop == b.start for a, b in pairwise(slices)):
        return rows[slices[0].start : slices[-1].stop]
    return torch.cat([rows[part] for part in slices])
