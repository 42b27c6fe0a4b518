"""Every RPC of draft and verify services: a handler, and valid requests to spoil."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from domino_serve.v1 import draft_pb2, tensor_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.sampling_pb2 import Sampling
from serving.contract import CONTRACT_VERSION
from serving.errors import Overloaded
from serving.tensors import data_type, to_message
from serving.transport.nccl import OwnNccl
from serving.transport.plane import SHM, OwnMemory
from serving.transport.shm import OwnShm
from tests.fuzz.calls import Outcome, call, converse
from tests.fuzz.messages import Fuzzer
from tests.recorded_models import DOMINO_SHIFT, HIDDEN, PROMPTS
from tests.services.served import Draft, Verify

CPU: Final = torch.device("cpu")
STREAM: Final = 20  # messages of a stream of steps, unless one of them ends it


@dataclass(frozen=True, slots=True)
class Target:
    """One RPC; `run` sends so many messages and gives what came of each call."""

    name: str
    run: Callable[[Fuzzer, int], Iterator[tuple[int, Outcome]]]


def unary(name: str, handler: Callable[[Any, Any], Any], seeds: Sequence[Any]) -> Target:
    """A target whose calls have one request; three of four are a seed spoiled."""

    def run(fuzzer: Fuzzer, count: int) -> Iterator[tuple[int, Outcome]]:
        for _ in range(count):
            seed = fuzzer.rng.choice(seeds)
            spoil = fuzzer.rng.random() < 0.75
            request = fuzzer.spoiled(seed) if spoil else fuzzer.invented(type(seed))
            yield 1, call(handler, request)

    return Target(name, run)


def targets(draft: Draft, verify: Verify) -> list[Target]:
    return [*_draft(draft), *_verify(draft, verify)]


def _draft(draft: Draft) -> list[Target]:
    service, pb = draft.servicer, draft_pb2
    hello = pb.HandshakeRequest(
        contract_version=CONTRACT_VERSION,
        target=draft.loaded.target,
        draft=draft.loaded.hello.draft,
        self_test_rows=to_message(draft.loaded.self_test),
    )
    modes = spec.MODE_DFLASH, spec.MODE_DOMINO
    seats = [pb.ReserveSeatRequest(mode=mode, max_positions=40) for mode in modes]
    folder = pb.UpdateDraftWeightsRequest(folder=str(DOMINO_SHIFT))
    return [
        unary("DraftService.Handshake", service.Handshake, [hello]),
        unary("DraftService.ReserveSeat", service.ReserveSeat, seats),
        unary("DraftService.ReleaseSeat", service.ReleaseSeat, [pb.ReleaseSeatRequest()]),
        unary("DraftService.GetLoads", service.GetLoads, [pb.DraftServiceGetLoadsRequest()]),
        unary("DraftService.UpdateDraftWeights", service.UpdateDraftWeights, [folder]),
        unary("DraftService.GetProjection", service.GetProjection, [pb.GetProjectionRequest()]),
        Target("DraftService.Step", lambda fuzzer, count: _steps(draft, fuzzer, count)),
    ]


def _steps(draft: Draft, fuzzer: Fuzzer, count: int) -> Iterator[tuple[int, Outcome]]:
    """Streams whose first messages are right, so that later ones meet an open session; the rows of
    every other stream are in shared memory, and some are offered a pair that sends nothing more."""
    left, streams = count, 0
    while left > 0:
        memory: OwnMemory | None = None
        if streams % 2:
            memory = OwnShm(slots=2, slot_bytes=4096)
        elif streams % 8 == 0:
            memory = OwnNccl(CPU, slot_bytes=4096)
        ticket = _ticket(draft)
        good = _good_steps(ticket, draft.loaded.engine.context_id, memory)
        sent: list[draft_pb2.StepRequest] = []
        requests = _spoiled_steps(fuzzer, good, min(STREAM, left), sent)
        outcome = converse(draft.servicer.Step, requests)
        if memory:
            memory.close()
        left, streams = left - len(sent), streams + 1
        yield len(sent), outcome


def _ticket(draft: Draft) -> str:
    """Those that no stream has opened expire soon."""
    while True:
        try:
            return draft.loaded.engine.reserve(spec.MODE_DOMINO, 60)
        except Overloaded:
            time.sleep(0.05)


def _spoiled_steps(
    fuzzer: Fuzzer,
    good: Sequence[draft_pb2.StepRequest],
    most: int,
    sent: list[draft_pb2.StepRequest],
) -> Iterator[draft_pb2.StepRequest]:
    """Good ones, most of them as they are, then the last one over and over, each spoiled."""
    for index in range(most):
        seed = good[min(index, len(good) - 1)]
        spoil = index >= len(good) or fuzzer.rng.random() < 0.3
        sent.append(fuzzer.spoiled(seed) if spoil else seed)
        yield sent[-1]


def _good_steps(
    ticket: str, context_id: int, memory: OwnMemory | None
) -> list[draft_pb2.StepRequest]:
    """Opens a session, gives it three rows, then asks for proposals twice."""
    opening = draft_pb2.SessionOpen(
        session=1, ticket=ticket, mode=spec.MODE_DOMINO, context_id=context_id
    )
    first = draft_pb2.SessionStep(session=1, step=1, rows_start=0, num_rows=3)
    asking = [
        draft_pb2.SessionStep(
            session=1, step=2 + i, rows_start=3 + i, num_rows=1, current=5, draft_tokens=4
        )
        for i in range(2)
    ]
    return [
        draft_pb2.StepRequest(
            opens=[opening],
            steps=[first],
            rows=_rows(3, 1, memory),
            sequence_number=1,
            offer=memory.offer() if memory else None,
        ),
        *(
            draft_pb2.StepRequest(steps=[step], rows=_rows(1, n, memory), sequence_number=n)
            for n, step in enumerate(asking, start=2)
        ),
    ]


def _rows(count: int, number: int, memory: OwnMemory | None) -> tensor_pb2.Tensor:
    """For the message of that number."""
    rows = torch.zeros(count, HIDDEN)
    if memory is None or memory.plane != SHM:
        return to_message(rows)
    slot = number % 2
    memory.fill(slot, rows, number)
    place = tensor_pb2.MemorySlot(slot=slot, sequence_number=number)
    return tensor_pb2.Tensor(dtype=data_type(rows), shape=rows.shape, shm=place)


def _verify(draft: Draft, verify: Verify) -> list[Target]:
    service, pb = verify.servicer, verify_pb2
    seat = pb.DraftSeat(address=draft.address, mode=spec.MODE_DOMINO, draft_tokens=3)
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, seed=3)
    kinds: list[dict[str, Any]] = [
        {},
        {"sampling": sampling, "min_tokens": 1},
        {"draft": seat, "chunk_stats": True},
    ]
    generate = [
        pb.VerifyServiceGenerateRequest(
            request_id="fuzz", prompt_ids=PROMPTS[0], max_tokens=2, stop_token_ids=[2], **more
        )
        for more in kinds
    ]
    blocks = [pb.Block(ids=PROMPTS[0][:3]), pb.Block()]
    score = pb.ScoreRequest(prompt_ids=PROMPTS[0], blocks=blocks, sampling=sampling, logprobs=True)
    abort = pb.VerifyServiceAbortRequest(request_id="fuzz")
    return [
        unary("VerifyService.Generate", service.Generate, generate),
        unary("VerifyService.Abort", service.Abort, [abort]),
        unary("VerifyService.Score", service.Score, [score]),
        unary("VerifyService.GetTarget", service.GetTarget, [pb.GetTargetRequest()]),
        unary(
            "VerifyService.ConnectDraft",
            service.ConnectDraft,
            [pb.ConnectDraftRequest(address=draft.address)],
        ),
        unary("VerifyService.GetLoads", service.GetLoads, [pb.GetLoadsRequest()]),
        unary("VerifyService.FlushCache", service.FlushCache, [pb.FlushCacheRequest()]),
    ]
