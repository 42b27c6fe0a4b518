"""Where the router looks for replicas: lists, DNS names, and what an option stands for."""

import socket

import pytest

from router.discovery import discovery
from router.discovery_dns import DnsName
from router.discovery_kubernetes import KubernetesService
from router.endpoint import FAR, SAME_NODE, SAME_ZONE, Endpoint
from serving.options import OptionError
from tests.router.endpoint_sets import Sets, addresses, follow


def test_nearness_needs_a_known_place() -> None:
    """Prevents strangers without a node or zone from passing for neighbours."""
    here = Endpoint(address="a:1", node="n1", zone="z1")
    assert here.nearness(Endpoint(address="b:1", node="n1", zone="z1")) == SAME_NODE
    assert here.nearness(Endpoint(address="b:1", node="n2", zone="z1")) == SAME_ZONE
    assert here.nearness(Endpoint(address="b:1", node="n2", zone="z2")) == FAR
    assert Endpoint(address="a:1").nearness(Endpoint(address="b:1")) == FAR


def test_dns_tells_each_change_once_and_drops_names_that_vanish() -> None:
    """Prevents a pod that DNS no longer names from getting requests, and restarts for nothing."""
    answers: list[list[str] | OSError] = [
        ["10.0.0.2", "10.0.0.1"],
        ["10.0.0.1", "10.0.0.2"],
        ["10.0.0.2"],
        socket.gaierror(socket.EAI_AGAIN, "the name server is away"),
        socket.gaierror(socket.EAI_NONAME, "no such name"),
        ["fd00::1"],
    ]

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("verify", 50052)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def talk(sets: Sets) -> None:
        assert addresses(await anext(sets)) == ["10.0.0.1:50052", "10.0.0.2:50052"]
        assert addresses(await anext(sets)) == ["10.0.0.2:50052"]
        assert addresses(await anext(sets)) == []
        assert len(answers) == 1, "a failing name server was taken for an empty answer"
        assert addresses(await anext(sets)) == ["[fd00::1]:50052"]

    follow(talk, DnsName("verify", 50052, interval_s=0, resolve=resolve))


def test_dns_asks_the_system() -> None:
    """Prevents an address per family and socket type for one replica."""

    async def talk(sets: Sets) -> None:
        assert addresses(await anext(sets)) == ["127.0.0.1:7"]

    follow(talk, DnsName("127.0.0.1", 7))


def test_an_option_names_its_source() -> None:
    """Prevents a Service's name from being dialled as a host, and the other way round."""
    assert isinstance(discovery("verify", "dns:verify.serving.svc:50053"), DnsName)
    assert isinstance(discovery("verify", "k8s:serving/verify:grpc"), KubernetesService)

    async def talk(sets: Sets) -> None:
        assert await anext(sets) == (
            Endpoint(address="h1:1", node="h1"),
            Endpoint(address="h2:1", node="h2"),
        )

    follow(talk, discovery("verify", "h1:1, h2:1"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "verify", "verify:grpc", "http://verify:1"),
        *("a:1,", "a:1,a:1", ",".join(f"h{i}:1" for i in range(257))),
        *("dns:", "dns:verify", "dns:verify:grpc", "dns:verify:0", "dns:verify:65536", "dns:a b:1"),
        *("k8s:", "k8s:verify", "k8s:verify:", "k8s:a/b/verify:grpc", "k8s:Verify:1", "k8s:v:0"),
    ],
)
def test_an_option_that_names_none_is_refused(text: str) -> None:
    """Prevents a router that starts, and then waits for a place that cannot exist."""
    with pytest.raises(OptionError, match="verify"):
        discovery("verify", text)


def test_a_service_needs_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents an ImportError in a background task of a router installed without the extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"domino-serve\[k8s\]"):
        discovery("verify", "k8s:verify:grpc")
