"""`python -m benchmarks.draft_host`: what a drafted step costs the draft service beside its model.

Messages of a verify service in bytes in, answers in bytes out, with rows in shared memory; the
model's part is replaced by recorded proposals. Microseconds of one thread, medians.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import provenance
from benchmarks.cpu_plan import new_file
from benchmarks.text_table import text_table
from domino_cli.argument_types import positive
from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from domino_kernels.paged_kv import PagedKV
from domino_serve.v1 import draft_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.engine import DraftEngine, Stream
from draft_service.executor import Part
from draft_service.metrics import count_step
from draft_service.seats import Seats
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.target_config import open_target
from serving.transport.plane import SHM
from serving.transport.receiver import Receiver
from serving.transport.sender import Sender
from serving.transport.shm import MappedShm, OwnShm

SESSIONS = (1, 8, 32)
TAKEN, PROPOSALS, HIDDEN = 6, 15, 4096  # rows a step and session; ids; values of a row
PARTS = ("parse", "rows", "engine", "serialize", "until answered", "after")


@dataclass(slots=True)
class Recorded:
    """An executor that answers at once."""

    config: DraftConfig
    num_graph: int = 0
    num_eager: int = 0

    @property
    def modes(self) -> Collection[spec.Mode.ValueType]:
        return [spec.MODE_DOMINO]

    @property
    def kv(self) -> PagedKV:
        raise AssertionError("there is no model")

    def run(
        self, parts: Sequence[Part], rows: Tensor | None, timings: pb.DraftTimings
    ) -> list[list[int]]:
        return [list(range(30_000, 30_000 + PROPOSALS)) for _ in parts]

    def begin(self, parts: Sequence[Part], verified: object, count: int) -> None:
        """Nothing."""


class Exchange:
    """Both ends of one stream, in one thread."""

    def __init__(self, config: DraftConfig, sessions: int) -> None:
        pages = sessions * -(-config.max_context // 256)
        seats = Seats(pages=pages, page_size=256, max_sessions=sessions, ttl_s=60)
        self._engine = DraftEngine(Recorded(config), seats, max_rows=4096)
        self._stream, self._receiver = Stream(), Receiver({SHM: MappedShm})
        self._sender, memory = Sender(), OwnShm()
        offer = self._receiver.answer(memory.offer())
        assert self._sender.agree(memory, pb.StepResponse(offer=offer)) is None
        self._sessions, self._number = range(1, sessions + 1), 0
        self._sent = torch.randn(sessions * TAKEN, HIDDEN).to(torch.bfloat16)
        self.times: dict[str, list[float]] = defaultdict(list)

    def request(self) -> pb.StepRequest:
        """The next step's; the first one opens the sessions."""
        self._number += 1
        request = pb.StepRequest(sequence_number=self._number)
        for session in self._sessions:
            if self._number == 1:
                ticket = self._engine.reserve(spec.MODE_DOMINO, 1 << 20)
                request.opens.add(
                    session=session, ticket=ticket, mode=spec.MODE_DOMINO,
                    context_id=self._engine.context_id,
                )  # fmt: skip
            request.steps.add(
                session=session, step=self._number, rows_start=(self._number - 1) * TAKEN,
                num_rows=TAKEN, current=7, draft_tokens=PROPOSALS,
            )  # fmt: skip
        self._sender.put(self._sent, request)
        return request

    def answer(self, data: bytes) -> None:
        """What draft_service.servicer does with a message."""
        clock = [time.perf_counter()]
        request = pb.StepRequest.FromString(data)
        clock.append(time.perf_counter())
        rows = self._receiver.rows(request, HIDDEN, torch.bfloat16)
        clock.append(time.perf_counter())
        response = self._engine.step(self._stream, request, rows)
        clock.append(time.perf_counter())
        told = response.SerializeToString()
        clock.append(time.perf_counter())
        self._receiver.release()
        count_step(request, response)
        clock.append(time.perf_counter())
        took = [b - a for a, b in pairwise(clock)]
        took.insert(4, clock[4] - clock[0])
        for name, one in zip(PARTS, took, strict=True):
            self.times[name].append(one * 1e6)
        found = pb.StepResponse.FromString(told)
        assert len(found.results[-1].proposals.ids) == PROPOSALS
        self._sender.answered(found.sequence_number)

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_host", description=__doc__)
    parser.add_argument("--steps", type=positive, default=300, metavar="N", help="(%(default)s)")
    parser.add_argument("--json", type=new_file, metavar="FILE", help="where the figures go")
    args = parser.parse_args(argv)
    origin = provenance.Origin.at_start(f"python -m benchmarks.draft_host {' '.join(argv)}".strip())
    torch.set_num_threads(1)  # as beside a GPU
    _, target = open_target(resolve_model(DEFAULT_TARGET))
    _, config = open_draft(resolve_model(DEFAULT_DRAFT), target)
    found = {sessions: measured(config, sessions, args.steps) for sessions in SESSIONS}
    rows = [(str(n), *(f"{took[part]:.1f}" for part in PARTS)) for n, took in found.items()]
    print(text_table(("sessions", *PARTS), rows))
    if args.json:
        result: dict[str, Any] = {"benchmark": "draft_host", **origin.at_end()}
        result |= {"cpu": provenance.cpu().as_json(), "us": found}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measured(config: DraftConfig, sessions: int, steps: int) -> dict[str, float]:
    """Median us of each part, after a tenth of the steps."""
    exchange = Exchange(config, sessions)
    for _ in range(steps + steps // 10):
        exchange.answer(exchange.request().SerializeToString())
    exchange.close()
    return {name: median(took[steps // 10 :]) for name, took in exchange.times.items()}


if __name__ == "__main__":
    sys.exit(main())
