"""What the verify service's own work costs a step: its engine as it is, the target and the draft
replaced by recorded answers. Microseconds by part, at several numbers of sequences, on a CPU.

The draft's message is serialised and its answer parsed, as by any link; making the answer is the
draft's time and left out. meanwhile: what is done while the draft works, so in no step's way.
`python -m benchmarks.verify_host`.
"""

import argparse
import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Any

import torch
from torch import Tensor

from benchmarks import provenance
from benchmarks.pair_steps import Ends
from benchmarks.text_table import text_table
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.transport.plane import INLINE
from verify_service.drafting import Drafting
from verify_service.engine import Engine
from verify_service.executor import Executor
from verify_service.row_spans import RowSpan, rows_at
from verify_service.scheduler import Scheduler, Work
from verify_service.sequence import Chosen, DraftPlan, Request
from verify_service.timeline import Step

COMMAND = "python -m benchmarks.verify_host --json FILE"
PAGE, PROMPT, STEPS, ACCEPTED, HIDDEN, VOCAB = 16, 512, 300, 4, 8, 150_000
PARTS = ("plan", "verify", "commit", "send", "meanwhile", "answer")


class RecordedTarget(Executor):
    """Keeps the first ACCEPTED proposals of every block; rows are gathered as on a device."""

    def __init__(self, pages: int) -> None:
        self._table = torch.zeros(pages * PAGE, HIDDEN)

    def run(self, work: Seq[Work]) -> list[Chosen]:
        return [
            Chosen(ids=[*item.ids[1 : 1 + ACCEPTED], *[7] * 16][: item.choices]) for item in work
        ]

    def use_projection(self, number: int) -> None:
        """There is none."""

    def rows(self, spans: Seq[RowSpan]) -> Tensor:
        return rows_at(self._table, spans, PAGE)


class RecordedLink:
    """A draft that answers at once, and knows how long making the answer took."""

    alive, plane = True, INLINE
    max_rows, context_id, projection, late_answers = 100_000, 1, 0, 0

    def send(self, request: draft_pb2.StepRequest, rows: Tensor | None) -> None:
        self._request, self._sent = request, request.SerializeToString()
        self._sent_at = monotonic_ns()

    def receive(self, timeout_s: float) -> draft_pb2.StepResponse:
        began = monotonic_ns()
        answer = draft_pb2.StepResponse()
        answer.timings.append_ns = began - self._sent_at
        for step in self._request.steps:
            result = answer.results.add(session=step.session, step=step.step)
            result.proposals.draft_kv_len = step.rows_start + step.num_rows
            result.proposals.ids.extend(range(8, 8 + step.draft_tokens))
        answer.timings.backbone_ns = monotonic_ns() - began
        data = answer.SerializeToString()
        return draft_pb2.StepResponse.FromString(data)

    def close(self) -> None:
        """Nothing is held."""


def steps_of(sequences: int, width: int) -> list[Step]:
    """The full drafted steps of so many requests."""
    new = STEPS * (ACCEPTED + 1)
    pages = sequences * -(-(PROMPT + new) // PAGE)
    target, link = RecordedTarget(pages), RecordedLink()
    drafting = Drafting(target.rows, VOCAB, step_s=60, timeout_s=60)
    scheduler = Scheduler(
        pages=pages, page_size=PAGE, max_sequences=sequences, prefill_tokens=PROMPT * sequences
    )
    engine, ends = Engine(target, scheduler, drafting, max_waiting=0), Ends(sequences)
    for number in range(sequences):
        plan = DraftPlan(link=link, ticket="", mode=spec.MODE_DOMINO, draft_tokens=width - 1)
        engine.submit(request(str(number), new, ends.emit, plan))
    engine.start()
    try:
        ends.wait()
    finally:
        engine.stop()
    full = (sequences, sequences * width)
    return [s for s in engine.timeline.steps if (s.sequences, s.positions) == full]


def request(name: str, new: int, emit: Callable[[Any], None], plan: DraftPlan) -> Request:
    return Request(
        request_id=name,
        prompt_ids=[3] * PROMPT,
        max_tokens=new,
        stop_ids=frozenset({2}),
        emit=emit,
        draft=plan,
    )


def row(sequences: int, width: int) -> dict[str, Any]:
    """Medians in microseconds."""
    steps = steps_of(sequences, width)
    parts = {name: [getattr(s, f"{name}_ns") for s in steps] for name in PARTS[:4]}
    parts["meanwhile"] = [s.draft_append_ns for s in steps]
    parts["answer"] = [s.wait_ns - s.draft_backbone_ns - s.draft_append_ns for s in steps]
    found = {name: median(values) / 1000 for name, values in parts.items()}
    return {"sequences": sequences, "width": width, "steps": len(steps), "us": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    origin = provenance.Origin.at_start(COMMAND)
    rows = [row(*place) for place in ((1, 16), (8, 16), (32, 8))]
    lines = [
        [str(r["sequences"]), str(r["width"]), *(f"{r['us'][p]:.0f}" for p in PARTS)] for r in rows
    ]
    print(text_table(("sequences", "width", *PARTS), lines))
    if args.json:
        about = {"hardware": provenance.hardware("cpu"), **origin.at_end(), "unit": "us a step"}
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
