"""Times every step graph before the first request: graphs in, a StepTable out."""

import logging
import time
from itertools import pairwise

import torch

from verify_service.gpu_step import Step, StepGraphs
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence
from verify_service.step_table import StepCost, StepTable, through

SHORT, LONG = 256, 8192  # positions of context of a sequence
REPLAYS = 3

log = logging.getLogger(__name__)


@torch.inference_mode()
def measured(graphs: StepGraphs, pages: int, page_size: int, max_context: int) -> StepTable:
    """Replays each graph at two lengths. Writes to pages, so none may be in use."""
    began = time.monotonic()
    costs: dict[tuple[int, int], StepCost] = {}
    for batch, width in graphs.sizes:
        step, points = graphs.step(batch, width), []
        room = min(pages // batch * page_size, max_context) - width
        for context in sorted({min(SHORT, room), min(LONG, room)}):
            if context > 0:
                step.bucket.fill(_decoding(batch, width, context, page_size))
                points.append((batch * context, _seconds(step)))
        if points:
            costs[batch, width] = through(points[0], points[-1])
    log.info("timed %d graphs in %.1f s", len(costs), time.monotonic() - began)
    return StepTable(costs)


def _decoding(batch: int, width: int, context: int, page_size: int) -> list[Work]:
    """So many sequences in pages of their own."""
    each = -(-(context + width) // page_size)
    request = Request(
        request_id="", prompt_ids=[], max_tokens=1, stop_ids=frozenset(), emit=lambda event: None
    )
    pages = (list(range(i * each, (i + 1) * each)) for i in range(batch))
    return [
        Work(sequence=Sequence(request, pages=p, kv_len=context), ids=[0] * width, choices=width)
        for p in pages
    ]


def _seconds(step: Step) -> float:
    """The least of a few replays, one by one, behind one that warms up."""
    events = [_event() for _ in range(REPLAYS + 2)]
    for event in events:
        step.graph.replay()
        event.record()
    events[-1].synchronize()
    spans = (a.elapsed_time(b) for a, b in pairwise(events))
    return float(min(spans)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
