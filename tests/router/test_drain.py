"""A router that is told to end: not ready at once, closed to new requests only after its notice."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from domino_client import Client
from serving.channel import channel
from serving.errors import PeerUnavailable
from tests.router.fake_services import HANG, FakeVerify, served
from tests.router.router_process import command

NEVER_S = "600"


def readiness(address: str) -> int:
    with channel(address) as calls:
        request = health_pb2.HealthCheckRequest(service="readiness")
        return int(health_pb2_grpc.HealthStub(calls).Check(request, timeout=30).status)


def test_new_requests_are_taken_until_balancers_know(target: Path) -> None:
    """Prevents the requests that fail in each update: sent between the signal and its notice."""
    fake = FakeVerify()
    with served(fake) as verify:
        flags = ("--notice-s", NEVER_S, "--grace-s", NEVER_S)
        argv = command(target, verify, *flags)
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as router:
            assert router.stdout
            address = json.loads(router.stdout.readline())["address"]
            assert readiness(address) == health_pb2.HealthCheckResponse.SERVING
            with Client(address, timeout_s=60) as client:
                stream = client.stream(token_ids=[HANG], request_id="long")
                chunks = iter(stream)
                next(chunks)
                router.send_signal(signal.SIGTERM)
                while readiness(address) == health_pb2.HealthCheckResponse.SERVING:
                    pass
                assert client.generate(token_ids=[9], max_tokens=2).token_ids == (10, 11)
                router.send_signal(signal.SIGTERM)  # a second one: the running ones end
                with pytest.raises(PeerUnavailable):
                    list(chunks)
                assert router.wait(60) == 0
