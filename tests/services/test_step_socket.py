"""Steps by a local socket: the same tokens as by gRPC, and a killed draft costs speed only."""

import signal
from contextlib import closing

import grpc
import pytest

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from draft_service import servicer
from draft_service.step_socket import StepSocket
from tests.chaos.cluster import until
from tests.recorded_models import PROMPTS
from tests.services.processes import Process, running
from tests.services.requests import Call, seat, start
from tests.services.served import Draft, serve_draft, serve_verify
from tests.standing_still import standing_still
from verify_service.draft_link import GrpcDraftLink
from verify_service.step_streams import SocketSteps


def begin(draft: Process, verify: Process, case: int, mode: spec.Mode.ValueType) -> Call:
    channels = [grpc.insecure_channel(service.address) for service in (draft, verify)]
    place = None
    if mode != spec.MODE_AR:
        place = seat(draft_pb2_grpc.DraftServiceStub(channels[0]), draft.address, mode=mode)
    stub = verify_pb2_grpc.VerifyServiceStub(channels[1])
    return start(stub, PROMPTS[case % len(PROMPTS)], 30 + 5 * case, place)


@pytest.mark.parametrize("no_step_socket", [True, None])
def test_tokens_are_the_same_by_either_way(no_step_socket: bool | None) -> None:
    """A message cut or doubled on the way; a way that is never taken."""
    with (
        running("draft_service", no_step_socket=no_step_socket) as draft,
        running("verify_service", width=6) as verify,
    ):
        expected = [begin(draft, verify, i, spec.MODE_AR).finish()[0] for i in range(4)]
        calls = [begin(draft, verify, i, spec.MODE_DOMINO) for i in range(4)]
        found = [call.finish() for call in calls]
        assert [ids for ids, _ in found] == expected
        assert sum(done.speculation.accepted_tokens for _, done in found) > 0
        way = "GrpcSteps" if no_step_socket else "SocketSteps"
        assert any(f"steps go by {way}" in line for line in verify.log)


def test_a_frozen_verify_service_keeps_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seats of one that stands still: on a local socket no ping finds out."""
    monkeypatch.setattr(servicer, "SILENT_S", 0.5)
    with (
        serve_draft() as draft,
        closing(StepSocket(draft.servicer.serve)) as socket,
        serve_verify(width=6) as verify,
    ):
        draft.servicer.step_socket = socket.name
        expected = start(verify.stub, PROMPTS[0], 400).finish()[0]
        with standing_still(verify.engine) as until_it_stands:
            place = seat(draft.stub, draft.address, positions=410)
            call = start(verify.stub, PROMPTS[0], 400, place)
            until_it_stands()
            assert until(lambda: not held(draft), 120), "the draft waits for ever"
        ids, done = call.finish()
        assert (ids, done.speculation.plain_steps > 0) == (expected, True)
        [(_, link)] = verify.links.items()
        assert isinstance(link, GrpcDraftLink) and isinstance(link._steps, SocketSteps)


def held(draft: Draft) -> int:
    """Pages of its sessions."""
    return int(draft.stub.GetLoads(draft_pb2.DraftServiceGetLoadsRequest()).kv_pages_used)


def test_a_killed_draft_costs_speed_only() -> None:
    """Requests that wait for a draft whose socket is gone."""
    with running("draft_service") as draft, running("verify_service", width=6) as verify:
        expected = begin(draft, verify, 3, spec.MODE_AR).finish()[0]
        call = begin(draft, verify, 3, spec.MODE_DOMINO)
        assert draft.end(signal.SIGKILL) == -signal.SIGKILL
        assert call.finish()[0] == expected
