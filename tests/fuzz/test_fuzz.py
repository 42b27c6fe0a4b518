"""Every RPC under messages nobody would send: a right status, and neighbours as before."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from domino_serve.v1 import draft_pb2, generate_pb2, verify_pb2
from tests.fuzz.calls import call
from tests.fuzz.campaign import Neighbour, attack, engines
from tests.fuzz.front import front
from tests.fuzz.strategies import messages
from tests.fuzz.targets import Target, targets
from tests.services.served import Draft, Verify

MESSAGES, SEED = 2000, 3
SERVICES = [
    *(draft_pb2.DESCRIPTOR.services_by_name.values()),
    *(verify_pb2.DESCRIPTOR.services_by_name.values()),
]
ENGINE_RPCS = [f"{service.name}.{m.name}" for service in SERVICES for m in service.methods]
ROUTER_RPCS = [
    f"GenerateService.{method.name}"
    for method in generate_pb2.DESCRIPTOR.services_by_name["GenerateService"].methods
]
# Of hypothesis: no clock decides, and the same run each time.
SOME = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of refusals would fill the report of a failure."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[Draft, Verify]]:
    with engines() as running:
        yield running


@pytest.fixture(scope="module")
def neighbour(services: tuple[Draft, Verify]) -> Neighbour:
    return Neighbour(*services)


@pytest.fixture(scope="module")
def engine_targets(services: tuple[Draft, Verify]) -> dict[str, Target]:
    return {target.name: target for target in targets(*services)}


@pytest.fixture(scope="module")
def router_targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    with front(tmp_path_factory.mktemp("front")) as found:
        yield {target.name: target for target in found}


@pytest.mark.parametrize("rpc", ENGINE_RPCS)
def test_engine_services(engine_targets: dict[str, Target], neighbour: Neighbour, rpc: str) -> None:
    """Prevents one message from crashing a service, hanging it, or changing somebody's answer."""
    found = attack(engine_targets[rpc], MESSAGES, SEED, neighbour)
    assert found["failures"] == {}
    assert found["messages"] >= MESSAGES
    assert neighbour.held() == {}


@pytest.mark.parametrize("rpc", ROUTER_RPCS)
def test_the_router(router_targets: dict[str, Target], rpc: str) -> None:
    """Prevents a client's message from ending the router, or a call without a right status."""
    found = attack(router_targets[rpc], MESSAGES, SEED, None)
    assert found["failures"] == {}
    assert found["messages"] >= MESSAGES


@given(request=messages(verify_pb2.VerifyServiceGenerateRequest.DESCRIPTOR))
@SOME
def test_any_request_to_verify(services: tuple[Draft, Verify], request: Any) -> None:
    """Prevents statuses that blame the service for what a caller sent."""
    assert call(services[1].servicer.Generate, request).failure == ""


@given(request=messages(verify_pb2.ScoreRequest.DESCRIPTOR))
@SOME
def test_any_request_to_score(services: tuple[Draft, Verify], request: Any) -> None:
    """The same of Score."""
    assert call(services[1].servicer.Score, request).failure == ""


@given(request=messages(draft_pb2.HandshakeRequest.DESCRIPTOR))
@SOME
def test_any_handshake(services: tuple[Draft, Verify], request: Any) -> None:
    """Prevents a tensor of any shape from taking the draft down before it is refused."""
    assert call(services[0].servicer.Handshake, request).failure == ""


@given(request=messages(draft_pb2.StepRequest.DESCRIPTOR))
@SOME
def test_any_step(services: tuple[Draft, Verify], request: Any) -> None:
    """Prevents a verify service of another version from ending other streams than its own."""

    def one(request: Any, context: Any) -> Any:
        return services[0].servicer.Step(iter([request]), context)

    assert call(one, request).failure == ""
