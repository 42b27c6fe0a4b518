"""One pass of the target on a GPU: graphs for steps, single launches for prompts.

A graph makes the argmax of each row or draws from it; tokens with masked stop ids or with
log-probabilities are made behind it, from the logits it leaves.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.gpu.hand_over import Verified
from domino_kernels.norm import rms_norm
from verify_service.choice import choose
from verify_service.early_drafts import Proposals
from verify_service.executor import Executor
from verify_service.gpu_ahead import Ahead, drafted_step, next_step
from verify_service.gpu_costs import measured
from verify_service.gpu_first_tokens import FirstTokens, beside, first_tokens
from verify_service.gpu_items import chosen_in_graph, fits_graph
from verify_service.gpu_projections import GpuProjections
from verify_service.gpu_prompts import PromptGraphs
from verify_service.gpu_step import Answer, Step, StepGraphs, batch_buckets
from verify_service.gpu_target import GpuTarget
from verify_service.metrics import EAGER
from verify_service.row_spans import RowSpan, rows_at
from verify_service.scheduler import Work
from verify_service.sequence import Chosen
from verify_service.step_table import StepTable


class GpuExecutor(Executor):
    """Owns the KV pages, the projected rows beside them and the step graphs.

    num_graph, num_eager: items of work run by a graph, and by single launches (prompts and blocks
    longer than any graph's), since start.
    """

    def __init__(
        self,
        target: GpuTarget,
        *,
        pages: int,
        page_size: int,
        max_sequences: int,
        widths: Seq[int],
        prompt_rows: Seq[int] = (),
        overlap: bool = True,
    ) -> None:
        """Captures every graph; raises torch.OutOfMemoryError when they do not fit.

        prompt_rows: numbers of prompts' positions with a graph. overlap: plain steps start before
        the one before them is committed.
        """
        self._overlap = overlap
        self._gpu, self._page_size, self.pages = target, page_size, pages
        self._kv = target.new_kv(pages, page_size)
        self._table: Tensor | None = None
        if target.projection:
            shape = (pages * page_size, target.config.hidden_size)
            self._table = torch.zeros(shape, dtype=target.dtype, device=target.device)
        longest = min(pages, -(-target.config.max_context // page_size))
        self._graphs = StepGraphs(
            target,
            self._kv,
            self._table,
            pages=longest,
            batches=batch_buckets(max_sequences),
            widths=widths,
        )
        self.num_graph = self.num_eager = 0
        self._ahead: Ahead | None = None
        self._step: Step | None = None  # the last one launched
        self._going: Answer | None = None  # what it was followed by on this rank, if told to
        self.launched: Verified | None = None
        self._drafts = GpuProjections(target, self._graphs.catch_up)
        self._prompts = PromptGraphs(target, self._kv, self._table, pages=longest, rows=prompt_rows)
        with torch.inference_mode():
            pool = torch.cuda.graph_pool_handle()
            self._graphs.capture(pool)
            self._prompts.capture(pool)

    def start(self, work: Seq[Work]) -> Callable[[], list[Chosen]]:
        """Launches what a graph can do as a whole, then prompts; `run` later otherwise."""
        self.launched = None
        count = sum(fits_graph(item, self._graphs.most[1]) for item in work)
        steps, prompts = work[:count], work[count:]  # as plans are ordered
        rows = [self._ahead.row(item) if self._ahead else None for item in steps]
        mixed = None in rows and any(row is not None for row in rows)
        if not self._overlap or not work or mixed or (steps and not self._fits(steps)):
            return partial(self.run, work)
        answers: list[Callable[[], list[Chosen]]] = []
        joins = any(item.choices for item in prompts)
        with torch.inference_mode():
            if steps:
                answers.append(self._start_steps(steps, rows, alone=not joins))
            else:
                self._ahead = None
            if prompts:
                found = self._run_prompts(prompts)
                answers.append(found.answer)
            if joins and (self.launched or not steps):
                self.launched = found.verified and beside(self.launched, count, found.verified)
        return lambda: [chosen for answer in answers for chosen in answer()]

    def _start_steps(
        self, work: Seq[Work], rows: Seq[int | None], *, alone: bool
    ) -> Callable[[], list[Chosen]]:
        """Those that `rows` of the step ahead run already, or a launch; and what may start before
        they are committed: a draft, or a plain step where they are `alone` in it too."""
        self.num_graph += len(work)
        answer, step = self._launch(work) if None in rows else self._go_on(work, rows)
        if step and all(map(chosen_in_graph, work)):
            self._ahead = next_step(work, step) if alone else None
            # behind a step that goes on by itself nobody drafts
            self.launched = None if self._ahead else step.verified()
        if self._ahead:
            self._tell(None)
        return answer

    def _go_on(
        self, work: Seq[Work], rows: Seq[int | None]
    ) -> tuple[Callable[[], list[Chosen]], Step | None]:
        """The answer of the step that started ahead, for these rows of it; and the step, if these
        are all."""
        ahead, self._ahead = self._ahead, None
        assert ahead is not None, "rows are its"
        answer = partial(self._taken, work, rows, ahead.answer, ahead.step.bucket.width)
        return answer, ahead.step if list(rows) == list(range(len(ahead.starts))) else None

    def go_on(self) -> None:
        """Returns once the step before has ended: no rank is more than one step ahead."""
        assert self._step, "a step comes first"
        with torch.inference_mode():
            before, self._going = self._going, self._step.launch_next()
        if before:
            before()

    def _taken(
        self, work: Seq[Work], rows: Seq[int | None], answer: Answer, width: int
    ) -> list[Chosen]:
        found = answer()
        taken = [found[row] for row in rows if row is not None]
        self._remember(taken)
        return self._chosen(work, taken, width)

    def _remember(self, found: list[list[int]]) -> None:
        """Tells the step that runs already with which ids it does."""
        if self._ahead:
            self._ahead.ids = [[row[1]] for row in found]

    def start_ahead(self, work: Seq[Work], proposals: Proposals) -> None:
        size = self._page_size
        room = all(item.start + len(item.ids) <= size * len(item.sequence.pages) for item in work)
        if self._overlap and room and self._fits(work):
            with torch.inference_mode():
                answer, step = self._graphs.launch(work, proposals.ids, self.pretend)
            self._ahead = drafted_step(work, proposals, step, answer)

    def _fits(self, work: Seq[Work]) -> bool:
        """Whether one graph runs it all."""
        batch, width = self._graphs.most
        return 0 < len(work) <= batch and all(fits_graph(item, width) for item in work)

    def costs(self) -> StepTable:
        """Times every graph; only while no page is in use."""
        return measured(self._graphs, self.pages, self._page_size, self._gpu.config.max_context)

    @torch.inference_mode()
    def run(self, work: Seq[Work]) -> list[Chosen]:
        """Runs all positions of `work`; per item, what the target says after its last ids."""
        batch, width = self._graphs.most
        ahead, self._ahead = self._ahead, None
        steps: list[int] = []
        rest: list[int] = []
        chosen: dict[int, Chosen] = {}
        found: list[list[int]] = []
        for i, item in enumerate(work):
            if ahead and (row := ahead.row(item)) is not None:
                found = found or ahead.answer()
                chosen[i] = self._chosen([item], [found[row]], 1)[0]
            else:
                (steps if fits_graph(item, width) else rest).append(i)
        self.num_graph += len(steps) + len(chosen)
        for first in range(0, len(steps), batch):
            some = steps[first : first + batch]
            answer, _ = self._launch([work[i] for i in some])
            chosen |= dict(zip(some, answer(), strict=True))
        if rest:
            tokens = self._run_prompts([work[i] for i in rest]).answer()
            chosen |= dict(zip(rest, tokens, strict=True))
        return [chosen[i] for i in range(len(work))]

    def _launch(self, work: Seq[Work]) -> tuple[Callable[[], list[Chosen]], Step]:
        """What waits for its answer, and the step it is."""
        self._tell(work)
        answer, step = self._graphs.launch(work, None, self.pretend)
        self._step, self._going, self._ahead = step, None, None

        def read() -> list[Chosen]:
            found = answer()
            self._remember(found)
            return self._chosen(work, found, step.bucket.width)

        return torch.inference_mode()(read), step

    def _chosen(self, work: Seq[Work], found: list[list[int]], apart: int) -> list[Chosen]:
        chosen = [
            Chosen(ids=row[2 : 2 + len(w.ids)]) if row[0] >= 0 else Chosen(ids=[], usable=False)
            for row, w in zip(found, work, strict=False)
        ]
        own = [i for i, item in enumerate(work) if not chosen_in_graph(item)]
        if own:
            rows = [i * apart + j for i in own for j in range(len(work[i].ids))]
            sound = [found[i][0] >= 0 for i in own]
            logits, items = self._graphs.logits(rows), [work[i] for i in own]
            answers = choose(logits, items, sound, self._gpu.vocabulary)
            for i, answer in zip(own, answers, strict=True):
                chosen[i] = answer
        return chosen

    def _run_prompts(self, work: Seq[Work]) -> FirstTokens:
        self._tell(work)
        if self._prompts.fit(work):
            self.num_graph += len(work)
        else:
            self.num_eager += len(work)
            EAGER.inc(by=len(work))
        self._graphs.catch_up()
        normed = self._prompts.run(work)
        return first_tokens(self._gpu, normed, work, self._table, self._page_size)

    def add_projection(self, fc: Tensor, norm: Tensor) -> int:
        return self._drafts.add(fc, norm)

    def use_projection(self, number: int) -> None:
        self._drafts.use(number)

    @torch.inference_mode()
    def project(self, taps: list[Tensor]) -> Tensor:
        projection = self._gpu.projection
        assert projection, "rows are asked for only where a draft was given"
        rows = F.linear(torch.cat(taps, -1), projection.fc.weight)
        return rms_norm(rows, projection.norm, projection.eps)

    def rows(self, spans: Seq[RowSpan]) -> Tensor:
        assert self._table is not None, "rows are asked for only where a draft was given"
        self._graphs.catch_up()
        return rows_at(self._table, spans, self._page_size)
