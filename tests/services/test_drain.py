"""SIGTERM: running requests finish, nothing waits for idle streams, no log looks like a fault."""

import signal

import grpc
import pytest

from domino_serve.v1 import draft_pb2_grpc, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import channel
from serving.errors import Draining, PeerUnavailable, from_rpc_error
from tests.recorded_models import PROMPTS
from tests.services.processes import running
from tests.services.requests import generate, seat, start

NEVER_S = 600  # a grace period that no test waits for
PROMPT = PROMPTS[0]


def test_a_service_drains_in_the_time_its_requests_need() -> None:
    """A draft's stream is open as long as verify lives: draining by it would never end in time."""
    with (
        running("draft_service", grace_s=NEVER_S) as draft,
        running("verify_service", grace_s=NEVER_S) as verify,
        channel(draft.address) as draft_calls,
        channel(verify.address) as calls,
    ):
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        place = seat(draft_pb2_grpc.DraftServiceStub(draft_calls), draft.address)
        call = start(stub, PROMPT, 400, place)
        assert draft.end(signal.SIGTERM) == 0
        verify.send(signal.SIGTERM)
        ids, done = call.finish()
        assert (len(ids), done.finish_reason) == (400, spec.FINISH_REASON_LENGTH)
        verify.await_line("draining")
        with pytest.raises(grpc.RpcError) as caught:
            generate(stub, PROMPT, 4)
        assert isinstance(from_rpc_error(caught.value), Draining | PeerUnavailable)
        assert verify.ended() == 0
    for service in (draft, verify):
        assert any("draining" in line for line in service.log)
        assert not [line for line in service.log if "Traceback" in line or " ERROR " in line]
