"""A verify service's side of the draft stream for tests: random rows, whole messages, answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.engine import DraftEngine, Stream
from tests.recorded_models import BLOCK, HIDDEN


def random_rows(count: int, seed: int) -> Tensor:
    """[count, hidden], of the size that a norm leaves."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def step(session: int, number: int, start: int, rows: int, **more: int) -> pb.SessionStep:
    """A step that asks for a whole block unless `more` says otherwise."""
    fields = {"current": 3, "draft_tokens": BLOCK - 1} | more
    return pb.SessionStep(session=session, step=number, rows_start=start, num_rows=rows, **fields)


def append(session: int, number: int, start: int, rows: int) -> pb.SessionStep:
    """A step without a current token."""
    return pb.SessionStep(session=session, step=number, rows_start=start, num_rows=rows)


@dataclass(slots=True)
class Peer:
    """One stream to an engine."""

    engine: DraftEngine
    stream: Stream = field(default_factory=Stream)

    def open(
        self, session: int, mode: spec.Mode.ValueType = spec.MODE_DOMINO, positions: int = 64
    ) -> pb.SessionOpen:
        """A good opening, with a seat reserved for it."""
        ticket = self.engine.reserve(mode, positions)
        context = self.engine.context_id
        return pb.SessionOpen(session=session, ticket=ticket, mode=mode, context_id=context)

    def exchange(
        self,
        *steps: pb.SessionStep,
        rows: Tensor | None = None,
        opens: Sequence[pb.SessionOpen] = (),
        closes: Sequence[int] = (),
    ) -> list[pb.SessionResult]:
        """The results of one message, in order of session and step."""
        request = pb.StepRequest(steps=steps, opens=opens, closes=closes, sequence_number=9)
        answer = self.engine.step(self.stream, request, rows)
        assert answer.sequence_number == 9
        return sorted(answer.results, key=lambda result: (result.session, result.step))


def reason(result: pb.SessionResult) -> str:
    """Name of the error a result must be."""
    assert result.WhichOneof("answer") == "error", result
    return pb.SessionErrorReason.Name(result.error.reason).removeprefix("SESSION_ERROR_REASON_")


def ids(result: pb.SessionResult) -> list[int]:
    """Proposals a result must be."""
    assert result.WhichOneof("answer") == "proposals", result
    return list(result.proposals.ids)
