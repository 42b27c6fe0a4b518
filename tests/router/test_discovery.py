"""Where the router looks for replicas: DNS names and Kubernetes Services, good and bad answers."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router.discovery import discovery
from router.discovery_dns import DnsName
from router.discovery_kubernetes import KubernetesService
from router.endpoint import FAR, SAME_NODE, SAME_ZONE, Endpoint
from router.endpoint_slices import endpoints
from serving.options import OptionError
from tests.router.fake_kubernetes import (
    END,
    FakeService,
    endpoint,
    endpoint_slice,
    fake_kubernetes,
    listing,
)

Sets = AsyncIterator[tuple[Endpoint, ...]]
GARBAGE: list[object] = [
    None,
    7,
    "text",
    [],
    {},
    {"endpoints": 3},
    {"addressType": "IPv4", "endpoints": "x"},
]
BAD_ENTRIES: list[object] = [
    *(None, 7, "text", {}, {"addresses": []}, {"addresses": ["no address"]}, {"addresses": [None]}),
    {"addresses": ["10.0.0.300"]},
    {"addresses": {"0": "10.0.0.1"}},
]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """Service "verify" of the API that the process' kubeconfig leads to."""
    with fake_kubernetes(tmp_path) as (kubernetes, kubeconfig):
        monkeypatch.setattr(
            "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)
        )
        monkeypatch.delitem(os.environ, "KUBERNETES_SERVICE_HOST", raising=False)
        yield kubernetes["verify"]


def addresses(found: tuple[Endpoint, ...]) -> list[str]:
    return [one.address for one in found]


def follow(talk: Callable[[Sets], Awaitable[None]], source: Any) -> None:
    """Runs `talk` with the source's sets, and closes them as the router does."""

    async def run() -> None:
        sets = source.watch()
        try:
            await talk(sets)
        finally:
            await sets.aclose()

    asyncio.run(run())


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


def test_watch_follows_adds_changes_and_deletes(api: FakeService) -> None:
    """Prevents a router that knows the replicas of its own start only."""
    api.answers = [listing(endpoint_slice("a", endpoint("10.0.0.1", node="n1", zone="z1")))]

    async def talk(sets: Sets) -> None:
        first = Endpoint(address="10.0.0.1:50052", node="n1", zone="z1")
        assert await anext(sets) == (first,)
        api.emit("ADDED", endpoint_slice("b", endpoint("10.0.0.2", ready=True)))
        assert addresses(await anext(sets)) == ["10.0.0.1:50052", "10.0.0.2:50052"]
        api.emit("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
        api.emit("MODIFIED", endpoint_slice("a", endpoint("10.0.0.1", ready=False)))
        assert addresses(await anext(sets)) == ["10.0.0.2:50052"]
        api.emit("DELETED", endpoint_slice("b"))
        assert addresses(await anext(sets)) == []

    follow(talk, KubernetesService("verify", "grpc", namespace="serving"))
    path, query = api.asked.get()
    assert path == "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
    assert query["labelSelector"] == ["kubernetes.io/service-name=verify"]
    assert api.asked.get()[1]["resourceVersion"] == ["7"]


def test_terminating_pods_are_dropped_at_once(api: FakeService) -> None:
    """Prevents requests to a pod that still answers its readiness probe while it ends."""
    api.answers = [listing(endpoint_slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2")))]

    async def talk(sets: Sets) -> None:
        assert len(await anext(sets)) == 2
        ending = endpoint("10.0.0.1", ready=True, serving=True, terminating=True)
        api.emit("MODIFIED", endpoint_slice("a", ending, endpoint("10.0.0.2")))
        assert addresses(await anext(sets)) == ["10.0.0.2:50052"]

    follow(talk, KubernetesService("verify", "grpc"))


def test_a_service_without_endpoints_is_an_answer(api: FakeService) -> None:
    """Prevents a router that hangs on replicas which are all gone."""
    api.answers = [listing()]

    async def talk(sets: Sets) -> None:
        assert await anext(sets) == ()

    follow(talk, KubernetesService("verify", "grpc"))


@pytest.mark.parametrize(
    "bad", [b"", b"<html>", b"[]", b'{"items": 3}', b'{"items": [{}]}', b"null", 403, 500]
)
def test_an_answer_that_is_no_list_changes_nothing(
    api: FakeService, bad: bytes | int, caplog: pytest.LogCaptureFixture
) -> None:
    """Prevents an outage of the API, or a proxy's error page, from emptying the router."""
    good = endpoint_slice("a", endpoint("10.0.0.1"))
    api.answers = [listing(good), bad, listing(good, endpoint_slice("b", endpoint("10.0.0.2")))]

    async def talk(sets: Sets) -> None:
        assert addresses(await anext(sets)) == ["10.0.0.1:50052"]
        api.emit_line(END)
        assert addresses(await anext(sets)) == ["10.0.0.1:50052", "10.0.0.2:50052"]

    follow(talk, KubernetesService("verify", "grpc", pause_s=0.01))
    assert "nothing changes" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"[]\n",
        b'{"type": "MODIFIED"}\n',
        b'{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}\n',
    ],
)
def test_a_broken_watch_lists_again(api: FakeService, line: bytes) -> None:
    """Prevents a router that is blind from the first bad line on."""
    good = endpoint_slice("a", endpoint("10.0.0.1"))
    api.answers = [listing(good), listing(good, endpoint_slice("b", endpoint("10.0.0.2")))]

    async def talk(sets: Sets) -> None:
        assert len(await anext(sets)) == 1
        api.emit_line(line)
        assert len(await anext(sets)) == 2

    follow(talk, KubernetesService("verify", "grpc", pause_s=0.01))


def test_500_endpoints(api: FakeService) -> None:
    """Prevents limits on the length of an answer or of an event from hiding replicas."""
    many = [endpoint(f"10.0.{i // 250}.{i % 250}", node=f"n{i}") for i in range(500)]
    api.answers = [
        listing(*(endpoint_slice(str(i), *many[i : i + 100]) for i in range(0, 500, 100)))
    ]

    async def talk(sets: Sets) -> None:
        found = await anext(sets)
        assert len(found) == 500 and found[0].address == "10.0.0.0:50052"
        # One line of 60 KB; the other slices still have 400 of them.
        api.emit("MODIFIED", endpoint_slice("0", *many[1:]))
        assert len(await anext(sets)) == 499

    follow(talk, KubernetesService("verify", "grpc"))


@pytest.mark.parametrize("garbage", GARBAGE, ids=json.dumps)
def test_slices_that_are_none_are_left_out(garbage: object) -> None:
    """Prevents one unreadable slice from hiding the others."""
    good = endpoint_slice("a", endpoint("10.0.0.1"))
    assert addresses(endpoints([garbage, good], "grpc")) == ["10.0.0.1:50052"]


@pytest.mark.parametrize("entry", BAD_ENTRIES, ids=json.dumps)
def test_entries_that_are_none_are_left_out(entry: object) -> None:
    """Prevents addresses that no channel can be made to."""
    good = endpoint_slice("a", entry, endpoint("10.0.0.1"))
    assert addresses(endpoints([good], "grpc")) == ["10.0.0.1:50052"]


def test_ports_by_number_and_by_name() -> None:
    """Prevents port 0, text and another port's number from becoming an address."""
    one = endpoint_slice("a", endpoint("10.0.0.1"))
    assert addresses(endpoints([one], "9")) == ["10.0.0.1:9"]
    for ports in (None, [], [None], [{"name": "grpc"}], [{"name": "grpc", "port": 70000}], "grpc"):
        assert endpoints([one | {"ports": ports}], "grpc") == ()


def test_a_pod_with_two_families_is_one_replica() -> None:
    """Prevents dual-stack pods from counting, and being loaded, twice."""
    four, six = endpoint("10.0.0.1"), endpoint("fd00::1")
    both = [endpoint_slice("a", four), endpoint_slice("b", six, family="IPv6")]
    assert addresses(endpoints(both, "grpc")) == ["10.0.0.1:50052"]
    assert addresses(endpoints(both[1:], "grpc")) == ["[fd00::1]:50052"]


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
        *("", "a:1,", "a:1,a:1", ",".join(f"h{i}:1" for i in range(257))),
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
