"""One target pass: work in, the target's choices out; keeps KV and projected rows in pages."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from domino_kernels.attention import Batch, Span
from verify_service.choice import choose, finite
from verify_service.projection import FeatureProjection
from verify_service.row_spans import RowSpan, rows_at
from verify_service.scheduler import Work
from verify_service.sequence import Chosen
from verify_service.step_table import StepTable
from verify_service.target import Target
from verify_service.turns import KEPT

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified
    from verify_service.early_drafts import Proposals
    from verify_service.gpu_step import Pretend


class Executor:
    """Owns the target's KV pages and, beside them, one projected row per position.

    num_graph, num_eager: items of work run since the start by a graph, and by single launches.
    can_run_anew: a pass that raised, or a part of it. tell: gets what is launched, the step
    after the last one by None.
    """

    num_graph = num_eager = 0
    can_run_anew = True
    tell: Callable[[Seq[Work] | None], None] | None = None
    launched: "Verified | None" = None  # by `start`: what a draft on the same device goes on from
    pretend: "Pretend | None" = None  # of benchmarks; whoever starts steps early asks it

    def __init__(
        self, target: Target, projection: FeatureProjection | None, *, pages: int, page_size: int
    ) -> None:
        self._target, self._projection, self._page_size = target, projection, page_size
        self._projections = {0: projection} if projection else {}
        self._kv = target.new_kv(pages, page_size)
        if projection:
            shape = (pages, page_size, target.config.hidden_size)
            self._rows = torch.zeros(shape, dtype=target.dtype, device=target.device)

    def costs(self) -> StepTable | None:
        """What steps cost, where that is known before any has run; only while no page is in use."""
        return None

    def start(self, work: Seq[Work]) -> Callable[[], list[Chosen]]:
        """What runs `work`, or waits for it where a device does already."""
        return partial(self.run, work)

    def start_ahead(self, work: Seq[Work], proposals: "Proposals") -> None:
        """Starts the step after the last one before its proposals are known to the host, where that
        can be; `start` and `run` take it for theirs if they are asked for the same."""

    @torch.inference_mode()
    def run(self, work: Seq[Work]) -> list[Chosen]:
        """Runs all positions of `work`; per item, what the target says after its last ids."""
        self._tell(work)
        self.num_eager += len(work)
        spans = [Span(start=w.start, count=len(w.ids), pages=w.sequence.pages) for w in work]
        device = self._target.device
        batch = Batch(spans, self._page_size, device)
        ids = torch.tensor([i for w in work for i in w.ids], device=device)
        x, taps = self._target.forward(ids, batch, self._kv)
        if self._projection and any(w.sequence.request.keeps_rows for w in work):
            self._rows[batch.pages, batch.offsets] = self._projection(taps)
        chosen = [
            row
            for w, rows in zip(work, batch.rows, strict=True)
            for row in range(rows.stop - w.choices, rows.stop)
        ]
        sound = finite(x[[rows.stop - 1 for rows in batch.rows]])
        return choose(self._target.logits(x[chosen]), work, sound, self._target.vocabulary)

    def go_on(self) -> None:
        """Starts the step after the last one, as the first rank of a group has."""
        raise AssertionError("only graphs start before the step before them is committed")

    def _tell(self, work: Seq[Work] | None) -> None:
        if self.tell:
            self.tell(work)

    def add_projection(self, fc: Tensor, norm: Tensor) -> int:
        """Keeps that of another draft of the same shape, and forgets the oldest; its number."""
        assert self._projection, "a draft is followed only where one was given"
        number = max(self._projections) + 1
        self._projections[number] = self._projection.replaced(fc, norm)
        self._projections.pop(number - KEPT, None)
        return number

    def use_projection(self, number: int) -> None:
        """Rows of later positions are this one's; any number where there is none."""
        self._projection = self._projections.get(number)

    @torch.inference_mode()
    def project(self, taps: list[Tensor]) -> Tensor:
        """K tensors [n, hidden] -> rows [n, hidden]."""
        assert self._projection, "rows are asked for only where a draft was given"
        return self._projection(taps)

    def clear(self, pages: list[int]) -> None:
        """Zeroes the KV of pages: 0 x NaN would reach the sequence that gets them next."""
        self._kv.k[:, pages] = 0
        self._kv.v[:, pages] = 0

    def rows(self, spans: Seq[RowSpan]) -> Tensor:
        """Projected rows of all spans one after another: [n, hidden]."""
        return rows_at(self._rows.flatten(0, 1), spans, self._page_size)
