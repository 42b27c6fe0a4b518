"""EndpointSlices of a Service listed and watched; good and bad answers of the API."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from router.discovery_kubernetes import KubernetesService
from router.endpoint import Endpoint
from tests.router.endpoint_sets import Sets, addresses, follow
from tests.router.fake_kubernetes import (
    END,
    FakeService,
    endpoint,
    endpoint_slice,
    fake_kubernetes,
    listing,
)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """Service "verify" of the API that the process' kubeconfig leads to."""
    with fake_kubernetes(tmp_path) as (kubernetes, kubeconfig):
        monkeypatch.setattr(
            "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)
        )
        monkeypatch.delitem(os.environ, "KUBERNETES_SERVICE_HOST", raising=False)
        yield kubernetes["verify"]


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


def test_inside_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a pod that does not show its service account's token, or trusts any certificate."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret")
    where = "kubernetes.aio.config.incluster_config.SERVICE_"
    monkeypatch.setattr(f"{where}TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{where}CERT_FILENAME", str(tmp_path / "ca.crt"))

    async def talk(sets: Sets) -> None:
        assert addresses(await anext(sets)) == ["10.0.0.1:50052"]

    with fake_kubernetes(tmp_path, tls) as (kubernetes, _):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kubernetes.port))
        kubernetes["verify"].answers = [listing(endpoint_slice("a", endpoint("10.0.0.1")))]
        follow(talk, KubernetesService("verify", "grpc"))
        assert kubernetes.tokens == {"bearer secret"}


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
