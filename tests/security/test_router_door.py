"""The router's door by its client: tokens, limits of each caller, and requests of others."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from domino_cli.token import entry
from domino_client import AsyncClient, BadRequest, Client, Overloaded, Tls, Unauthenticated
from tests.router.fake_services import HANG, FakeVerify, served
from tests.router.router_process import running_router
from tests.router.services import target
from tests.security.certificates import Authority

__all__ = ["target"]

ALICE, BOB, CAROL = "alice-token", "bob-token", "carol-token"


@pytest.fixture(scope="module")
def router(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Knows alice with two places, and bob; carol's time is over."""
    lines = [*entry("alice", ALICE, 1, 2), *entry("bob", BOB, None, None)]
    lines += [*entry("carol", CAROL, None, None)]
    lines += [f"expires = {datetime.now(UTC) - timedelta(minutes=2):%Y-%m-%dT%H:%M:%SZ}"]
    file = tmp_path_factory.mktemp("callers") / "callers.toml"
    file.write_text("\n".join(lines))
    with (
        served(FakeVerify()) as verify,
        running_router(target, verify, "--callers", str(file)) as address,
    ):
        yield address


def test_without_a_good_token_nothing_is_served(router: str) -> None:
    """Prevents a method that was forgotten, and an expired token that still works."""
    for token in (None, "wrong", CAROL):
        with Client(router, token=token, timeout_s=30) as client:
            for call in (
                lambda client=client: client.generate(token_ids=[5], max_tokens=2),
                lambda client=client: client.abort("r"),
                lambda client=client: client.model_info(),
            ):
                with pytest.raises(Unauthenticated):
                    call()
    with Client(router, token=BOB, timeout_s=30) as client:
        assert client.generate(token_ids=[5], max_tokens=2).token_ids == (6, 7)
        assert client.model_info().vocab_size == 320


def test_the_asyncio_client_sends_its_token_too(router: str) -> None:
    """Prevents a client that works in one form only."""

    async def ask(token: str) -> tuple[int, ...]:
        async with AsyncClient(router, token=token, timeout_s=30) as client:
            return (await client.generate(token_ids=[5], max_tokens=2)).token_ids

    assert asyncio.run(ask(ALICE)) == (6, 7)
    with pytest.raises(Unauthenticated):
        asyncio.run(ask("wrong"))


def test_each_caller_has_its_own_places_and_names(router: str) -> None:
    """Prevents one caller from taking all places, or ending another's requests by their names."""
    with (
        Client(router, token=ALICE, timeout_s=30) as alice,
        Client(router, token=BOB, timeout_s=30) as bob,
        alice.stream(token_ids=[HANG], request_id="one") as first,
        alice.stream(token_ids=[HANG], request_id="two") as second,
    ):
        chunks, others = iter(first), iter(second)
        next(chunks), next(others)
        with pytest.raises(Overloaded, match="2 requests of alice are running"):
            alice.generate(token_ids=[5], max_tokens=2)
        assert bob.generate(token_ids=[5], max_tokens=2, request_id="one").token_ids == (6, 7)
        assert not bob.abort("one")
        assert alice.abort("one")
        assert list(chunks) == []
        assert first.completion.finish_reason == "abort"
        assert alice.generate(token_ids=[5], max_tokens=2).token_ids == (6, 7)


def test_tokens_do_not_travel_readable() -> None:
    """Prevents a token in plaintext on the network, by a slip in an address."""
    with pytest.raises(BadRequest, match=r"would travel readable to router\.example: give tls"):
        Client("router.example:443", token=ALICE)
    with pytest.raises(BadRequest, match="must be printable ASCII"):
        Client("127.0.0.1:1", token="naïve")


def test_clients_by_certificate_over_tls(target: Path, tmp_path: Path) -> None:
    """Prevents a front door that only tokens open, or whose encryption is for show."""
    authority = Authority(tmp_path)
    mine, other = authority.issue("batch.internal"), authority.issue("other.internal")
    door = authority.issue("127.0.0.1", to="router")
    file = tmp_path / "callers.toml"
    file.write_text('[batch]\ncertificate = "batch.internal"')
    flags = [f"--tls-cert={door.cert}", f"--tls-key={door.key}", f"--callers={file}"]
    flags += [f"--tls-client-ca={authority.cert}"]
    with served(FakeVerify()) as verify, running_router(target, verify, *flags) as address:
        with Client(address, tls=mine.tls(server_name=None), timeout_s=30) as client:
            assert client.generate(token_ids=[5], max_tokens=2).token_ids == (6, 7)
        with (
            Client(address, tls=other.tls(server_name=None), timeout_s=30) as client,
            pytest.raises(Unauthenticated),
        ):
            client.generate(token_ids=[5], max_tokens=2)
        assert Tls(ca=authority.cert).pems().cert is None
