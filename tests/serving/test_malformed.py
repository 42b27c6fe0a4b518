"""Bytes that are no message, through a sync and an aio server with the real health servicers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from serving.aio_server import AioServer
from serving.channel import channel
from serving.errors import BadRequest, from_rpc_error
from serving.server import Server

NOT_UTF8 = b"\x0a\x02\xff\xfe"  # a service name, field 1, of two bytes that are no UTF-8
EMPTY = b""


def statuses(address: str, method: str) -> list[object]:
    """What the method says to the bad message, and to a good one after it."""
    found: list[object] = []
    with channel(address) as calls:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = calls.unary_unary(method)
        for request in (NOT_UTF8, EMPTY):
            try:
                found.append(call(request, timeout=10))
            except grpc.RpcError as error:
                found.append(from_rpc_error(error))
    return found


@contextmanager
def sync_server() -> Iterator[str]:
    server = Server("health", host="127.0.0.1", port=0, grace_s=1)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


def aio_statuses(method: str) -> list[object]:
    async def run() -> list[object]:
        server = AioServer("health", host="127.0.0.1", port=0, grace_s=1)
        await server.start()
        try:
            return await asyncio.to_thread(statuses, server.address, method)
        finally:
            await server.grpc.stop(None)

    return asyncio.run(run())


@pytest.mark.parametrize("stack", ["sync", "aio"])
def test_bytes_that_are_no_message_are_the_callers_mistake(stack: str) -> None:
    """Prevents INTERNAL and a traceback in the log for text that is not UTF-8."""
    method = "/grpc.health.v1.Health/Check"
    if stack == "aio":
        refused, served = aio_statuses(method)
    else:
        with sync_server() as address:
            refused, served = statuses(address, method)
    assert isinstance(refused, BadRequest)
    assert refused.field == "request"
    assert "valid UTF-8" in str(refused)
    assert isinstance(served, bytes)
