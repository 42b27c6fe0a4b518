"""The router as a process that looks for its services: by DNS, and in a Kubernetes API."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from domino_client import Client, PeerUnavailable
from tests.router.fake_kubernetes import (
    FakeKubernetes,
    endpoint,
    endpoint_slice,
    fake_kubernetes,
    listing,
)
from tests.router.fake_services import FakeVerify, served
from tests.router.router_process import command, running_router

ANSWER = [100, 101, 102]  # of the fake service, to a prompt of 99


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    with fake_kubernetes(tmp_path) as (kubernetes, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield kubernetes


@contextmanager
def client_of(target: Path, verify: str, *flags: str) -> Iterator[Client]:
    with running_router(target, verify, *flags) as router, Client(router, timeout_s=60) as client:
        yield client


def answer(client: Client) -> list[int]:
    return list(client.generate(token_ids=[99], max_tokens=3).token_ids)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_a_dns_name(target: Path) -> None:
    """Prevents names that are looked up but never dialled."""
    with (
        served(FakeVerify()) as address,
        client_of(target, f"dns:localhost:{port_of(address)}") as client,
    ):
        assert answer(client) == ANSWER


def test_a_service_among_500_endpoints(target: Path, api: FakeKubernetes) -> None:
    """Prevents a router that drowns in replicas which do not answer."""
    with served(FakeVerify()) as address:
        many = [endpoint(f"127.1.{i // 250}.{i % 250 + 1}") for i in range(499)]
        slices = [endpoint_slice(str(i), *many[i : i + 100], port=1) for i in range(0, 499, 100)]
        real = endpoint_slice("real", endpoint("127.0.0.1"), port=port_of(address))
        api["verify"].answers = [listing(*slices, real)]
        with client_of(target, "k8s:verify:grpc") as client:
            assert answer(client) == ANSWER


def test_a_service_that_loses_its_last_endpoint(target: Path, api: FakeKubernetes) -> None:
    """Prevents requests that hang because nobody can take them, and a reason that is not told."""
    with served(FakeVerify()) as address:
        real = endpoint_slice("real", endpoint("127.0.0.1"), port=port_of(address))
        api["verify"].answers = [listing(real)]
        with client_of(target, "k8s:verify:grpc", "--failover-s", "0") as client:
            assert answer(client) == ANSWER
            api["verify"].emit("DELETED", real)
            with pytest.raises(PeerUnavailable, match="no verify service is known"):
                for _ in range(10_000):
                    answer(client)


def test_a_service_without_endpoints_at_start(target: Path, api: FakeKubernetes) -> None:
    """Prevents a router that waits for ever, or ends without saying for what it waited."""
    api["verify"].answers = [listing()]
    flags = ("--startup-timeout-s", "1")
    done = subprocess.run(
        command(target, "k8s:verify:grpc", *flags), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "at an unknown address did not answer within 1 s (no verify service is" in done.stderr


def test_no_access_to_an_api(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a traceback for somebody who starts it outside a cluster."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = subprocess.run(
        command(target, "k8s:verify:grpc"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "no access to the Kubernetes API" in done.stderr.splitlines()[-1]
