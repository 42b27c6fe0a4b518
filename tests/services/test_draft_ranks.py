"""A draft whose head two processes hold together (gloo): one rank's proposals, one life."""

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from domino_cli.rank_processes import rank_variables
from domino_cli.service_process import Event, ServiceProcess
from domino_cli.stack import flags
from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import channel
from tests.recorded_models import PROMPTS
from tests.services.processes import COMMON, END_S, START_S, Process
from tests.services.requests import seat, start
from tests.services.served import Verify, serve_draft, serve_verify

CANDIDATES = "0", "9"


@contextmanager
def draft_of_two(**options: object) -> Iterator[list[Process]]:
    """Both ranks; the first one serves."""
    log: list[str] = []
    with ExitStack() as stack:
        found: list[Process] = []
        for rank, variables in reversed(list(enumerate(rank_variables(2)))):
            events: queue.SimpleQueue[Event] = queue.SimpleQueue()
            arguments = flags({**COMMON, **options})
            service = ServiceProcess(
                f"draft{rank}", "draft_service", arguments, events=events, say=log.append,
                environment=variables,
            )  # fmt: skip
            stack.callback(service.stop, END_S)
            found.insert(0, Process("", log, service, events))
        event = found[0].events.get(timeout=START_S)
        assert event.address is not None, log
        found[0].address = event.address
        yield found


def drafted(verify: Verify, address: str) -> list[tuple[list[int], tuple[int, ...]]]:
    """Each prompt's ids, and how many steps accepted each position, in both modes."""
    found = []
    with channel(address) as calls:
        stub = draft_pb2_grpc.DraftServiceStub(calls)
        for mode in (spec.MODE_DOMINO, spec.MODE_DFLASH):
            for prompt in PROMPTS:
                call = start(verify.stub, prompt, 24, seat(stub, address, mode=mode))
                ids, done = call.finish()
                found.append((ids, tuple(done.speculation.accepted_by_position)))
    return found


@pytest.mark.parametrize("candidates", CANDIDATES)
def test_two_ranks_propose_what_one_does(candidates: str) -> None:
    """An id counted from the wrong rank's first token, or a best one not exchanged, only lowers
    acceptance."""
    with (
        serve_verify() as verify,
        serve_draft(domino_candidates=candidates) as one,
        draft_of_two(domino_candidates=candidates) as two,
    ):
        alone = drafted(verify, one.address)
        assert any(accepted and accepted[0] for _, accepted in alone)
        assert drafted(verify, two[0].address) == alone
        with channel(two[0].address) as calls, pytest.raises(grpc.RpcError) as refused:
            request = draft_pb2.UpdateDraftWeightsRequest(folder=str(COMMON["draft"]))
            draft_pb2_grpc.DraftServiceStub(calls).UpdateDraftWeights(request)
        assert "2 processes hold the draft" in str(refused.value.details())
        assert two[0].end(signal.SIGTERM) == 0
        assert two[1].ended() == 0


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_rank_ends_the_draft(lost: int) -> None:
    """The other would wait for it in an exchange, and its verify services for an answer."""
    with draft_of_two() as ranks:
        os.kill(ranks[lost].service.pid, signal.SIGKILL)
        assert ranks[lost].ended() == -signal.SIGKILL
        assert ranks[1 - lost].ended() == 1
        assert any(f"rank {lost} is gone; the group cannot go on" in line for line in ranks[0].log)
