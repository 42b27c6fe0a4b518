"""A router's side of verify and draft for tests: seats, requests, whole answers."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from tests.recorded_models import BLOCK

_names = itertools.count()
TIMEOUT_S = 120.0  # nothing waits so long; a hang becomes an error


def seat(
    stub: draft_pb2_grpc.DraftServiceStub,
    address: str,
    *,
    mode: spec.Mode.ValueType = spec.MODE_DOMINO,
    draft_tokens: int = BLOCK - 1,
    positions: int = 400,
) -> verify_pb2.DraftSeat:
    """A reserved seat, as a router passes it on."""
    request = draft_pb2.ReserveSeatRequest(mode=mode, max_positions=positions)
    ticket = stub.ReserveSeat(request, timeout=TIMEOUT_S).ticket
    return verify_pb2.DraftSeat(
        address=address, ticket=ticket, mode=mode, draft_tokens=draft_tokens
    )


def until_drafted(
    stub: verify_pb2_grpc.VerifyServiceStub,
    prompt: Sequence[int],
    max_tokens: int,
    place: Callable[[], verify_pb2.DraftSeat],
) -> list[tuple[list[int], verify_pb2.VerifyComplete]]:
    """Answers to one request on a new seat each, until one is drafted for: a draft that was away is
    left alone for a second."""
    deadline = time.monotonic() + TIMEOUT_S
    answers = [generate(stub, prompt, max_tokens, place())]
    while answers[-1][1].speculation.mode != spec.MODE_DOMINO:
        assert time.monotonic() < deadline, "it is never used again"
        answers.append(generate(stub, prompt, max_tokens, place()))
    return answers


@dataclass(slots=True)
class Call:
    """A running request; its first chunk has arrived."""

    stream: Any
    ids: list[int] = field(default_factory=list)

    def finish(self) -> tuple[list[int], verify_pb2.VerifyComplete]:
        """All ids and the last message."""
        for event in self.stream:
            if event.HasField("complete"):
                return self.ids, event.complete
            self.ids.extend(event.chunk.token_ids)
        raise AssertionError("the stream ended without a last message")

    def read(self, chunks: int) -> None:
        """Reads so many chunks more."""
        for event in itertools.islice(self.stream, chunks):
            self.ids.extend(event.chunk.token_ids)


def start(
    stub: verify_pb2_grpc.VerifyServiceStub,
    prompt: Sequence[int],
    max_tokens: int,
    draft: verify_pb2.DraftSeat | None = None,
    *,
    stops: Sequence[int] = (),
    request_id: str | None = None,
) -> Call:
    """Starts a request and waits for its first chunk; raises grpc.RpcError."""
    request = verify_pb2.VerifyServiceGenerateRequest(
        request_id=request_id or f"test-{next(_names)}",
        prompt_ids=prompt,
        max_tokens=max_tokens,
        stop_token_ids=stops,
        draft=draft,
    )
    call = Call(stub.Generate(request, timeout=TIMEOUT_S))
    call.read(1)
    return call


def generate(
    stub: verify_pb2_grpc.VerifyServiceStub,
    prompt: Sequence[int],
    max_tokens: int,
    draft: verify_pb2.DraftSeat | None = None,
) -> tuple[list[int], verify_pb2.VerifyComplete]:
    """A whole request."""
    return start(stub, prompt, max_tokens, draft).finish()
