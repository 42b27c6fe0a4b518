"""One draft step as a CUDA graph for each (mode, batch, proposals): parts in, proposals out."""

import logging
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from domino_kernels.paged_kv import PagedKV
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part
from draft_service.gpu_model import GpuDraft
from draft_service.gpu_rows import Bucket

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128)
COUNTS = (3, 7, 15)  # proposals: widths 4, 8 and 16

log = logging.getLogger(__name__)


class Rollout(Protocol):
    """Hidden rows [batch, n, hidden] and current tokens [batch] -> proposals [batch, n]."""

    def run(self, hidden: Tensor, current: Tensor) -> Tensor: ...


Rollouts = Mapping[spec.Mode.ValueType, Rollout]


def batch_buckets(max_sessions: int) -> list[int]:
    """Batch sizes with a graph of their own; larger batches take several steps."""
    most = min(max_sessions, BATCHES[-1])
    return [batch for batch in BATCHES if batch < most] + [most]


def count_buckets(max_draft_tokens: int) -> list[int]:
    """Numbers of proposals with a graph of their own."""
    return [count for count in COUNTS if count < max_draft_tokens] + [max_draft_tokens]


class StepGraphs:
    """Graphs of whole steps, captured at start; all share one memory pool.

    On a device without graphs the same launches run one by one.
    """

    def __init__(
        self, model: GpuDraft, rollouts: Rollouts, kv: PagedKV, *, pages: int,
        batches: Sequence[int], counts: Sequence[int],
    ) -> None:  # fmt: skip
        """pages: of a session, at most. batches, counts: ascending."""
        self._model, self._kv, self._rollouts = model, kv, rollouts
        self._pages, self._batches, self._counts = pages, batches, counts
        self._steps: dict[tuple[int, int, int], Step] = {}

    @property
    def most(self) -> int:
        """Largest batch of a step."""
        return self._batches[-1]

    def capture(self) -> None:
        """Captures every step, the largest first, and logs what it took."""
        device = self._model.device
        began, before = time.monotonic(), torch.cuda.memory_reserved(device)
        pool = torch.cuda.graph_pool_handle()
        for batch in reversed(self._batches):
            for count in reversed(self._counts):
                for mode in self._rollouts:
                    self.step(mode, batch, count).capture(pool)
        log.info(
            "captured %d graphs (batches %s, proposals %s) in %.1f s, %.2f GiB",
            len(self._steps),
            self._batches,
            self._counts,
            time.monotonic() - began,
            (torch.cuda.memory_reserved(device) - before) / 2**30,
        )

    def step(self, mode: spec.Mode.ValueType, batch: int, count: int) -> "Step":
        """The step of a bucket; made when it is first asked for."""
        key = mode, batch, count
        if key not in self._steps:
            size = self._kv.page_size
            bucket = Bucket(self._model, batch, count, pages=self._pages, page_size=size)
            self._steps[key] = Step(self._model, self._rollouts[mode], self._kv, bucket)
        return self._steps[key]

    def chosen(self, mode: spec.Mode.ValueType, parts: Sequence[Part]) -> "Step":
        """The smallest step that holds these parts, at most `most`, of one mode."""
        return self.holding(mode, len(parts), max(part.draft_tokens for part in parts))

    def holding(self, mode: spec.Mode.ValueType, parts: int, count: int) -> "Step":
        """The smallest step of at least so many parts and proposals."""
        batch = self._batches[bisect_left(self._batches, parts)]
        return self.step(mode, batch, self._counts[bisect_left(self._counts, count)])


class Step:
    """One bucket's step: context of new rows, blocks, base logits, rollout."""

    def __init__(self, model: GpuDraft, rollout: Rollout, kv: PagedKV, bucket: Bucket) -> None:
        self._model, self._rollout, self._kv, self.bucket = model, rollout, kv, bucket
        self.graph: torch.cuda.CUDAGraph | None = None

    def launch(self) -> Tensor:
        """Runs every kernel for what the bucket holds: proposals [batch, count] int64."""
        bucket = self.bucket
        self._model.append(bucket.projected, bucket.appended, self._kv)
        hidden = self._model.forward(bucket.blocks, self._kv)
        return self._rollout.run(hidden, bucket.current)

    def capture(self, pool: Any) -> None:
        """Compiles what is missing by a first run, then records the graph."""
        self.launch()
        torch.cuda.synchronize(self._model.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile: those of streams, where an updated draft is captured.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._out = self.launch()
        self.graph = graph

    def run(self, parts: Sequence[Part], rows: Tensor | None) -> list[list[int]]:
        """Proposals for up to `batch` parts; rows [n, hidden]: their new rows, n <= room."""
        self.bucket.fill(parts, rows)
        ids: list[list[int]] = self.replay()[: len(parts)].tolist()
        return ids

    def replay(self) -> Tensor:
        """Starts what the bucket holds: proposals [batch, count], until the next step's."""
        if self.graph is None:
            return self.launch()
        self.graph.replay()
        return self._out
