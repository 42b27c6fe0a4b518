"""Certificates replaced while services run: new connections use the new ones."""

import asyncio
import logging
import shutil
from pathlib import Path

import grpc
import pytest

from serving.channel import aio_channel
from serving.errors import PeerUnavailable
from serving.renewing_channel import RenewingChannel
from serving.service_options import ServiceOptions
from serving.tls import Tls
from tests.security.certificates import Authority, Issued
from tests.security.guarded import METHOD, STACKS, ask, served


def replace(old: Issued, new: Issued) -> None:
    """As a mounted secret changes: each file at once."""
    for before, after in ((old.cert, new.cert), (old.key, new.key)):
        copy = before.with_suffix(".new")
        shutil.copy(after, copy)
        copy.replace(before)


@pytest.mark.parametrize("stack", STACKS)
def test_a_renewed_server_certificate(stack: str, tmp_path: Path) -> None:
    """Prevents a restart of every service at each renewal, or an outage where it is forgotten."""
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    used, renewed = first.issue("127.0.0.1"), second.issue("127.0.0.1")
    with served(stack, ServiceOptions(tls_cert=used.cert, tls_key=used.key)) as address:
        assert ask(address, Tls(ca=first.cert)) == ""
        replace(used, renewed)
        assert ask(address, Tls(ca=second.cert)) == ""
        assert isinstance(ask(address, Tls(ca=first.cert)), PeerUnavailable)


@pytest.mark.parametrize("stack", STACKS)
def test_a_renewed_ca_of_clients(stack: str, tmp_path: Path) -> None:
    """Prevents a CA that stays trusted until the next restart."""
    ours, old, new = (Authority(tmp_path / name) for name in ("ours", "old", "new"))
    used = ours.issue("localhost")
    clients = tmp_path / "clients.pem"
    shutil.copy(old.cert, clients)

    def tls(authority: Authority) -> Tls:
        issued = authority.issue("router.internal")
        return Tls(cert=issued.cert, key=issued.key, ca=ours.cert, server_name="localhost")

    options = ServiceOptions(tls_cert=used.cert, tls_key=used.key, tls_ca=clients)
    with served(stack, options) as address:
        assert ask(address, tls(old)) == "router.internal"
        shutil.copy(new.cert, clients)
        assert ask(address, tls(new)) == "router.internal"
        assert isinstance(ask(address, tls(old)), PeerUnavailable)


def test_a_renewal_that_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Prevents a renewal caught half-way from ending the service; it is taken up once complete."""
    authority = Authority(tmp_path / "ours")
    used, renewed = authority.issue("127.0.0.1"), authority.issue("127.0.0.1", to="renewed")
    caplog.set_level(logging.INFO)
    with served("sync", ServiceOptions(tls_cert=used.cert, tls_key=used.key)) as address:
        shutil.copy(renewed.cert, used.cert)
        assert ask(address, Tls(ca=authority.cert)) == ""
        assert ask(address, Tls(ca=authority.cert)) == ""
        [told] = [r.message for r in caplog.records if r.levelno == logging.ERROR]
        assert "the old ones stay" in told
        shutil.copy(renewed.key, used.key)
        assert ask(address, Tls(ca=authority.cert)) == ""
        assert "took up renewed certificates" in caplog.text


def test_a_router_calls_with_its_renewed_certificate(tmp_path: Path) -> None:
    """Prevents a long-lived channel that reconnects with a certificate that has expired."""
    authority = Authority(tmp_path / "ours")
    issued = authority.issue("localhost")
    mine, next_one = authority.issue("router.old"), authority.issue("router.new")

    async def names(address: str) -> list[bytes]:
        async with aio_channel(address, mine.tls()) as calls:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = calls.unary_unary(METHOD)
            before = [await call(b"", timeout=20) for _ in range(2)]
            replace(mine, next_one)
            return [*before, *[await call(b"", timeout=20) for _ in range(2)]]

    options = ServiceOptions(**issued.flags())  # type: ignore[arg-type]
    with served("sync", options) as address:
        assert asyncio.run(names(address)) == [b"router.old"] * 2 + [b"router.new"] * 2


def test_a_closed_channel_is_asked_nothing() -> None:
    """Prevents a client's process from being aborted by gRPC, which a call after the end can do."""

    class Connection:
        async def close(self, grace: float | None) -> None:
            """Its memory is another's from here on."""

    async def run() -> None:
        calls = RenewingChannel(Connection, object)  # type: ignore[arg-type]
        ask = calls.unary_unary(METHOD)
        await calls.close()
        with pytest.raises(grpc.aio.UsageError, match="closed"):
            ask(b"")

    asyncio.run(run())
