"""So many messages to each RPC; between them, a known request has to get its known answer."""

import dataclasses
import faulthandler
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import grpc
import torch

from domino_serve.v1 import draft_pb2, verify_pb2
from serving.transport import nccl
from serving.transport.choice import taken
from tests.fuzz.front import front
from tests.fuzz.messages import Fuzzer
from tests.fuzz.targets import Target, targets
from tests.recorded_models import PROMPTS
from tests.services.requests import generate, seat
from tests.services.served import Draft, Verify, serve_draft, serve_verify

CPU: Final = torch.device("cpu")
SOON_S: Final = 0.1
NEIGHBOUR_EVERY: Final = 500
HANG_S: Final = 800.0  # of a single RPC's check between neighbours; then the stacks are shown


@contextmanager
def engines() -> Iterator[tuple[Draft, Verify]]:
    """Both engine services. Tickets expire soon, drafts that are nowhere are given up soon; so are
    rows that are nowhere, by every data plane that there is."""
    with (
        mock.patch.multiple(nccl, JOIN_S=SOON_S, MOVE_S=SOON_S),
        serve_draft(ticket_ttl_s=0.2) as draft,
        serve_verify() as verify,
    ):
        verify.links._timeout_s = 0.1
        kinds = {**draft.loaded.kinds, **taken("nccl", CPU)}
        draft.servicer._loaded = dataclasses.replace(draft.loaded, kinds=kinds)
        yield draft, verify


class Neighbour:
    """A drafted request in the same services."""

    def __init__(self, draft: Draft, verify: Verify) -> None:
        self._draft, self._verify = draft, verify
        self._expected = generate(verify.stub, PROMPTS[1], 12)[0]

    def is_well(self) -> bool:
        place = self._seat()
        return generate(self._verify.stub, PROMPTS[1], 12, place)[0] == self._expected

    def _seat(self) -> verify_pb2.DraftSeat:
        """Fuzzed reservations take all seats, until their tickets expire."""
        while True:
            try:
                return seat(self._draft.stub, self._draft.address, positions=60)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            time.sleep(0.05)

    def held(self) -> dict[str, int]:
        """What is held once nothing runs; nothing should be."""
        assert self._verify.engine.idle.wait(60)
        verify = self._verify.stub.GetLoads(verify_pb2.GetLoadsRequest())
        draft = self._draft.stub.GetLoads(draft_pb2.DraftServiceGetLoadsRequest())
        found = {
            "requests": verify.running + verify.waiting,
            "pages": verify.kv_pages_used,
            "sessions": draft.sessions,
        }
        return {name: count for name, count in found.items() if count}


def attack(target: Target, count: int, seed: int, neighbour: Neighbour | None) -> dict[str, Any]:
    """Messages sent, how calls ended, and what failed, the first of each kind."""
    statuses: Counter[str] = Counter()
    failures: dict[str, int] = {}
    messages = since = 0
    for number, outcome in target.run(Fuzzer(seed), count):
        messages, since = messages + number, since + number
        statuses[outcome.status] += 1
        if outcome.failure:
            failures[outcome.failure[:300]] = failures.get(outcome.failure[:300], 0) + 1
        if neighbour and since >= NEIGHBOUR_EVERY:
            since = 0
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            if not neighbour.is_well():
                failures["a neighbour's answer changed"] = 1
    faulthandler.cancel_dump_traceback_later()
    return {"messages": messages, "statuses": dict(statuses), "failures": failures}


def campaign(count: int, seed: int, rpcs: str = "") -> dict[str, Any]:
    """RPCs of the three services, those whose names begin with `rpcs`; what each came to."""
    results: dict[str, dict[str, Any]] = {}
    with engines() as (draft, verify):
        neighbour = Neighbour(draft, verify)
        for target in targets(draft, verify):
            if target.name.startswith(rpcs):
                results[target.name] = attack(target, count, seed, neighbour)
                results[target.name]["held"] = neighbour.held()
    with tempfile.TemporaryDirectory() as folder, front(Path(folder)) as router:
        for target in router:
            if target.name.startswith(rpcs):
                results[target.name] = attack(target, count, seed, None)
    return results
