"""One verify step as a CUDA graph for each (batch, width): ids in, accepted tokens out."""

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from domino_kernels.gpu.hand_over import Verified
from domino_kernels.gpu.pretend import pretend
from domino_kernels.paged_kv import PagedKV
from verify_service.gpu_first_tokens import accepted
from verify_service.gpu_late_rows import LateRows
from verify_service.gpu_rows import Bucket
from verify_service.gpu_target import GpuTarget
from verify_service.scheduler import Work

Answer = Callable[[], list[list[int]]]  # waits for what `Step.run` writes
Pretend = Callable[[Work], int]  # proposals that a benchmark has an item keep, or -1

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)

log = logging.getLogger(__name__)


def batch_buckets(max_sequences: int) -> list[int]:
    """Batch sizes with a graph of their own; larger batches take several steps."""
    most = min(max_sequences, BATCHES[-1])
    return [batch for batch in BATCHES if batch < most] + [most]


class StepGraphs:
    """Graphs of whole steps, captured at start; all share one memory pool."""

    def __init__(
        self, target: GpuTarget, kv: PagedKV, table: Tensor | None, *, pages: int,
        batches: Seq[int], widths: Seq[int],
    ) -> None:  # fmt: skip
        """pages: of a sequence, at most; table: where projected rows go."""
        self._target, self._kv, self._table = target, kv, table
        self._pages, self._batches, self._widths = pages, sorted(batches), sorted(widths)
        self._late = None if table is None else LateRows(target, table)
        self._steps: dict[tuple[int, int, bool], Step] = {}
        # drawing over ranks takes all logits to each, so that greedy steps have graphs of their own
        self._apart = target.vocabulary.ranks.size > 1
        own = target.vocabulary.own
        most = self._batches[-1] * self._widths[-1], own.stop - own.start
        self._logits = torch.empty(most, dtype=target.dtype, device=target.device)

    @property
    def most(self) -> tuple[int, int]:
        """Largest batch and width of a step."""
        return self._batches[-1], self._widths[-1]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Batch and width of every step."""
        return [(batch, width) for batch, width, draws in self._steps if not draws]

    def capture(self, pool: Any = None) -> None:
        """Captures every step, the largest first, and logs what it took; pool: others' too."""
        began, before = time.monotonic(), torch.cuda.memory_reserved(self._target.device)
        pool = pool or torch.cuda.graph_pool_handle()
        sizes = product(reversed(self._batches), reversed(self._widths), (True, False))
        for batch, width, draws in sizes:
            if self._apart or not draws:
                step = self._step(batch, width, draws=draws)
                self._steps[batch, width, draws] = step.capture(pool)
        if self._late:
            self._late.capture(pool)
        took = torch.cuda.memory_reserved(self._target.device) - before + self._logits.nbytes
        log.info(
            "captured %d graphs (batches %s, widths %s) in %.1f s, %.2f GiB",
            len(self._steps),
            self._batches,
            self._widths,
            time.monotonic() - began,
            took / 2**30,
        )

    def warm_up(self) -> None:
        """Runs the largest step without a graph: what it allocates is what a graph will need."""
        self._step(*self.most, draws=self._apart).run()
        torch.cuda.synchronize(self._target.device)

    def launch(
        self, work: Seq[Work], proposals: Tensor | None = None, pretend: Pretend | None = None
    ) -> tuple[Answer, "Step"]:
        """Starts at most `most` of work; what waits for `Step.run`'s rows, and the step.

        proposals [>= items, any]: what the ids behind each first one are. The logits of item i's
        ids are `logits` from row i * width on, until the next launch.
        """
        batch = self._batches[bisect_left(self._batches, len(work))]
        width = self._widths[bisect_left(self._widths, max(len(w.ids) for w in work))]
        draws = self._apart and any(item.sequence.request.sampling for item in work)
        step = self._steps[batch, width, draws]
        self.catch_up()
        return step.launch(work, proposals, pretend), step

    def catch_up(self) -> None:
        """Writes the projected rows that steps still owe, before other passes or drafts go on."""
        if self._late:
            self._late.catch_up()

    def logits(self, rows: Seq[int]) -> Tensor:
        """A copy of such rows of the last launch's logits."""
        return self._logits[list(rows)]

    def step(self, batch: int, width: int) -> "Step":
        """A bucket's step, once it was captured; over ranks the greedy one."""
        return self._steps[batch, width, False]

    def _step(self, batch: int, width: int, *, draws: bool) -> "Step":
        bucket = Bucket(
            batch,
            width,
            pages=self._pages,
            page_size=self._kv.page_size,
            plan=self._target.plan,
            device=self._target.device,
        )
        logits = self._logits[: batch * width]
        late = self._late if width == 1 else None
        return Step(self._target, self._kv, self._table, late, bucket, logits, draws=draws)


class Step:
    """One bucket's step."""

    def __init__(
        self,
        target: GpuTarget,
        kv: PagedKV,
        table: Tensor | None,
        late: LateRows | None,
        bucket: Bucket,
        logits: Tensor,
        *,
        draws: bool,
    ) -> None:
        """logits [batch * width, vocab] receives what the choices were made from.

        late: gets plain steps' taps. draws: over ranks, sequences may sample; on one GPU they
        always may.
        """
        self._target, self._kv, self._table, self.bucket = target, kv, table, bucket
        self._late, self._logits, self._draws = late, logits, draws

    def run(self) -> Tensor:
        """[batch, width + 2] int32: accepted (-1: no numbers), bonus, the choice after each id."""
        rows, shape = self.bucket.rows, (self.bucket.batch, self.bucket.width)
        if self._late:
            normed, self._taps = self._target.tapped(rows, self._kv)
        else:
            normed = self._target.forward(rows, self._kv, self._table)
        logits, vocabulary = self._target.logits(normed, self._logits), self._target.vocabulary
        ids, counts = rows.ids.view(shape), self.bucket.counts
        draws = self._draws or vocabulary.ranks.size == 1
        knobs = self.bucket.knobs if draws else None
        return accepted(vocabulary, logits, ids, counts, rows.positions, knobs)

    def capture(self, pool: Any) -> "Step":
        """Compiles what is missing by a first run, then records the graph."""
        self.run()
        torch.cuda.synchronize(self._target.device)
        self.graph = torch.cuda.CUDAGraph()
        # NCCL's own thread may call CUDA meanwhile
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self._out = self.run()
        # two, since a step may start before the last one's answer is read
        self._answers = deque(
            (torch.empty_like(self._out, device="cpu", pin_memory=True), _event()) for _ in range(2)
        )
        return self

    def verified(self) -> Verified | None:
        """What the last launch leaves on the device, its rows too; None where none are kept."""
        if self._table is None:
            return None
        if self._late:
            self._late.catch_up()
        rows = self.bucket.rows
        return Verified(out=self._out, positions=rows.positions, slots=rows.slots, rows=self._table)

    def launch(
        self, work: Seq[Work], proposals: Tensor | None = None, pretend: Pretend | None = None
    ) -> Answer:
        """Starts the graph for `work`; what waits for its answer. As StepGraphs.launch."""
        self.bucket.fill(work, proposals)
        return self._replay([pretend(item) for item in work] if pretend else [])

    def launch_next(self) -> Answer:
        """Starts the step after the last one, each row with the id it chose; width 1."""
        self.bucket.move_on(self._out)
        return self._replay()

    def _replay(self, accepted: Seq[int] = ()) -> Answer:
        self.graph.replay()
        if self._late:
            self._late.keep(self._taps, self.bucket.rows.slots)
        if accepted:
            self._pretend(accepted)
        self._answers.rotate()
        found, done = self._answers[0]
        found.copy_(self._out, non_blocking=True)
        done.record()
        return partial(_read, found, done)

    def _pretend(self, accepted: Seq[int]) -> None:
        bucket, vocab = self.bucket, self._logits.shape[1]
        ids = bucket.rows.ids.view(bucket.batch, bucket.width)
        pinned = torch.full((bucket.batch,), -1, dtype=torch.int32, pin_memory=True)
        pinned[: len(accepted)] = torch.tensor(accepted, dtype=torch.int32)
        there = pinned.to(self._out.device, non_blocking=True)
        pretend(self._out, ids, bucket.counts, there, vocab)


def _read(found: Tensor, done: torch.cuda.Event) -> list[list[int]]:
    done.synchronize()
    rows: list[list[int]] = found.tolist()
    return rows


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
