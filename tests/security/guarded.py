"""A server whose one method names the caller, sync and aio, and calls to it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from serving.aio_server import AioServer
from serving.channel import channel
from serving.errors import ServingError, from_rpc_error
from serving.peers import certificate_names
from serving.server import Server
from serving.service_options import ServiceOptions
from serving.tls import Tls

METHOD = "/test.Guarded/Who"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
STACKS = ("sync", "aio")


def _handlers(who: Any) -> grpc.GenericRpcHandler:
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Who": grpc.unary_unary_rpc_method_handler(who)
    }
    return grpc.method_handlers_generic_handler("test.Guarded", methods)


def _who(request: bytes, context: Any) -> bytes:
    return ",".join(certificate_names(context)).encode()


async def _aio_who(request: bytes, context: Any) -> bytes:
    return _who(request, context)


@contextmanager
def served(stack: str, options: ServiceOptions) -> Iterator[str]:
    """Its address."""
    with _sync(options) if stack == "sync" else _aio(options) as address:
        yield address


@contextmanager
def _sync(options: ServiceOptions) -> Iterator[str]:
    server = Server("guarded", host="127.0.0.1", port=0, grace_s=1, options=options)
    server.grpc.add_generic_rpc_handlers((_handlers(_who),))
    server.start("test.Guarded")
    try:
        yield server.address
    finally:
        server.stop()


@contextmanager
def _aio(options: ServiceOptions) -> Iterator[str]:
    """In an event loop of its own, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> AioServer:
        server = AioServer("guarded", host="127.0.0.1", port=0, grace_s=1, options=options)
        server.grpc.add_generic_rpc_handlers((_handlers(_aio_who),))
        await server.start("test.Guarded")
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        yield server.address
        asyncio.run_coroutine_threadsafe(server.grpc.stop(None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def ask(address: str, tls: Tls | None, method: str = METHOD, **metadata: str) -> str | ServingError:
    """The names the server sees, or the error."""
    with channel(address, tls) as calls:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = calls.unary_unary(method)
        try:
            return call(b"", timeout=20, metadata=tuple(metadata.items())).decode()
        except grpc.RpcError as error:
            return from_rpc_error(error, "guarded")


def reflected(address: str, tls: Tls | None) -> str | ServingError:
    """The same through a stream of requests."""
    with channel(address, tls) as calls:
        call: Any = calls.stream_stream(REFLECTION)
        try:
            return "".join("answered" for _ in call(iter([b""]), timeout=20))
        except grpc.RpcError as error:
            return from_rpc_error(error, "guarded")
