"""The three services as processes under mutual TLS, with names and a token: all of it, and no
plaintext beside it.
"""

from pathlib import Path

import grpc
import pytest

from domino_cli.token import entry
from domino_client import Client, PeerUnavailable, PermissionDenied, Tls, Unauthenticated
from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.errors import ServingError, from_rpc_error
from tests.recorded_models import PROMPTS
from tests.security.certificates import Authority
from tests.services.whole import Whole, whole

TOKEN = "the-token"


def target_of(services: Whole, tls: Tls | None) -> ServingError | str:
    """What verify says to a stranger."""
    with channel(services.verify.address, tls) as calls:
        try:
            stub = verify_pb2_grpc.VerifyServiceStub(calls)
            return stub.GetTarget(verify_pb2.GetTargetRequest(), timeout=20).target.name
        except grpc.RpcError as error:
            return from_rpc_error(error)


def weights_of(services: Whole, tls: Tls | None) -> ServingError | str:
    """What draft says to somebody who would replace its weights."""
    with channel(services.draft.address, tls) as calls:
        try:
            stub = draft_pb2_grpc.DraftServiceStub(calls)
            request = draft_pb2.UpdateDraftWeightsRequest(folder="/")
            return stub.UpdateDraftWeights(request, timeout=20).draft.name
        except grpc.RpcError as error:
            return from_rpc_error(error)


def test_the_whole_path_is_closed_and_open(tmp_path: Path) -> None:
    """Prevents TLS options that one service, or one of its channels, does not heed."""
    authority = Authority(tmp_path / "ca")
    issued = {
        name: authority.issue(f"{name}.internal", "127.0.0.1", to=name)
        for name in ("router", "verify", "draft", "stranger")
    }
    callers = tmp_path / "callers.toml"
    callers.write_text("\n".join(entry("me", TOKEN, None, None)))
    with whole(
        tmp_path / "target",
        draft={**issued["draft"].flags(), "tls_allow": "router.internal,verify.internal"},
        verify={**issued["verify"].flags(), "tls_allow": "router.internal"},
        router={**issued["router"].flags(), "callers": callers},
    ) as services:
        address, trusted = services.router.address, Tls(ca=authority.cert)
        with Client(address, tls=trusted, token=TOKEN, timeout_s=60) as client:
            done = client.generate(token_ids=PROMPTS[0], max_tokens=24)
        assert done.completion_tokens == 24
        assert done.speculation.accepted_tokens > 0, "the draft did not take part"
        stranger = issued["stranger"].tls(server_name=None)
        assert isinstance(target_of(services, stranger), PermissionDenied)
        assert isinstance(weights_of(services, stranger), PermissionDenied)
        assert isinstance(target_of(services, None), PeerUnavailable)
        assert isinstance(weights_of(services, None), PeerUnavailable)
        with Client(address, tls=trusted, timeout_s=60) as client, pytest.raises(Unauthenticated):
            client.generate(token_ids=PROMPTS[0], max_tokens=2)
        with Client(address, timeout_s=60) as client, pytest.raises(PeerUnavailable):
            client.model_info()
