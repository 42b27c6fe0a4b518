"""Every way into a service that asks for certificates, tried on both server stacks."""

from pathlib import Path

import pytest

from serving.errors import Overloaded, PeerUnavailable, PermissionDenied, ServingError
from serving.service_options import ServiceOptions
from serving.tls import Tls
from tests.security.certificates import Authority
from tests.security.guarded import HEALTH, METHOD, STACKS, ask, reflected, served


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"))


def options(ours: Authority, allow: str | None = None) -> ServiceOptions:
    issued = ours.issue("localhost", "127.0.0.1", to="server")
    return ServiceOptions(
        tls_cert=issued.cert, tls_key=issued.key, tls_ca=issued.ca, tls_allow=allow
    )


@pytest.mark.parametrize("stack", STACKS)
def test_who_gets_in(stack: str, ours: Authority, theirs: Authority) -> None:
    """Prevents an engine that anybody in the network can use, or feed."""
    router = ours.issue("router.internal")
    stranger = theirs.issue("router.internal")
    old = ours.issue("router.internal", expired=True, to="old")
    trusting = {"ca": ours.cert, "server_name": "localhost"}
    with served(stack, options(ours)) as address:
        assert ask(address, router.tls()) == "router.internal"
        for tls in (
            None,  # plaintext
            Tls(ca=ours.cert, server_name="localhost"),  # no certificate
            Tls(cert=stranger.cert, key=stranger.key, **trusting),  # type: ignore[arg-type]
            old.tls(),
        ):
            assert isinstance(ask(address, tls), PeerUnavailable)
        assert ask(address, router.tls()) == "router.internal"


@pytest.mark.parametrize("stack", STACKS)
def test_only_listed_names_may_call(stack: str, ours: Authority) -> None:
    """Prevents a certificate for one purpose from opening every service; probes stay open."""
    router, other = ours.issue("router.internal"), ours.issue("batch.internal")
    with served(stack, options(ours, "verify.internal, router.internal")) as address:
        assert ask(address, router.tls()) == "router.internal"
        refused = ask(address, other.tls())
        assert isinstance(refused, PermissionDenied)
        assert "batch.internal" in str(refused)
        assert isinstance(reflected(address, other.tls()), PermissionDenied)
        assert reflected(address, router.tls()) == "answered"
        assert not isinstance(ask(address, other.tls(), HEALTH), ServingError)


@pytest.mark.parametrize("stack", STACKS)
def test_servers_are_checked_too(stack: str, tmp_path: Path, theirs: Authority) -> None:
    """Prevents prompts that go to whoever answers at an address."""
    mine = Authority(tmp_path)
    trusted = mine.issue("verify.internal")
    for issued, name, accepted in (
        (theirs.issue("verify.internal"), "verify.internal", False),  # another CA's
        (mine.issue("verify.internal", expired=True, to="old"), "verify.internal", False),
        (trusted, "localhost", False),  # another name
        (trusted, "verify.internal", True),
    ):
        with served(stack, ServiceOptions(tls_cert=issued.cert, tls_key=issued.key)) as address:
            answer = ask(address, Tls(ca=mine.cert, server_name=name))
        assert isinstance(answer, str if accepted else PeerUnavailable)


@pytest.mark.parametrize("stack", STACKS)
def test_oversized_metadata_is_refused(stack: str, ours: Authority) -> None:
    """Prevents memory that any header fills, and refusals by chance between gRPC's two limits."""
    router = ours.issue("router.internal")
    with served(stack, options(ours)) as address:
        assert ask(address, router.tls(), filler="x" * 8_000) == "router.internal"
        for size in (17_000, 20_000, 100_000):
            assert isinstance(ask(address, router.tls(), METHOD, filler="x" * size), Overloaded)
        assert ask(address, router.tls()) == "router.internal"
