"""The error tree crosses gRPC, sync and aio, and comes out as it went in."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from serving.channel import SERVER_OPTIONS, aio_channel, channel
from serving.errors import (
    BadRequest,
    ContractMismatch,
    DeadlineExceeded,
    DraftUnavailable,
    Draining,
    InternalError,
    Mismatch,
    Overloaded,
    PeerUnavailable,
    PermissionDenied,
    ServingError,
    Unauthenticated,
    error_classes,
    from_rpc_error,
)
from serving.guard import aio_guard, guard

METHOD = "/test.Raiser/Raise"
Methods = dict[str, "grpc.RpcMethodHandler[Any, Any]"]

EXAMPLES = [
    BadRequest("max_tokens", "0; must be at least 1"),
    Mismatch("hidden_size", 576, 512, "load the same target"),
    ContractMismatch(1, 2),
    Overloaded("all 32 seats are taken", retry_after_s=0.25),
    Draining(),
    PeerUnavailable("verify", "connection refused"),
    DraftUnavailable("draft", "gone: naïve ☂"),
    DeadlineExceeded("router: too late"),
    Unauthenticated("the bearer token is unknown"),
    PermissionDenied("not in --tls-allow"),
    InternalError(),
]


@contextmanager
def raising_server(error: Exception) -> Iterator[str]:
    """A sync server whose only method raises `error`; gives its address."""

    def handler(_: bytes, context: grpc.ServicerContext) -> bytes:
        with guard(context):
            raise error

    server = grpc.server(ThreadPoolExecutor(1), options=SERVER_OPTIONS)
    methods: Methods = {"Raise": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Raiser", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def method(calls: Any) -> Any:
    return calls.unary_unary(METHOD)


def received(error: Exception) -> grpc.RpcError:
    with raising_server(error) as address, channel(address) as calls:
        with pytest.raises(grpc.RpcError) as caught:
            method(calls)(b"", timeout=10)
        return caught.value


async def received_over_aio(error: Exception) -> grpc.RpcError:
    async def handler(_: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        async with aio_guard(context):
            raise error

    server = grpc.aio.server(options=SERVER_OPTIONS)
    methods: Methods = {"Raise": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Raiser", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio_channel(f"127.0.0.1:{port}") as calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(calls)(b"", timeout=10)
    await server.stop(None)
    return caught.value


def test_examples_cover_every_error() -> None:
    """Prevents a new error that nobody tried to send."""
    assert {type(error) for error in EXAMPLES} == set(error_classes().values())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stack", ["sync", "aio"])
def test_every_error_round_trips(error: ServingError, stack: str) -> None:
    """Prevents callers that must read messages to learn what happened."""
    sent = received(error) if stack == "sync" else asyncio.run(received_over_aio(error))
    back = from_rpc_error(sent, "service")
    assert sent.code() is error.code
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.metadata == error.metadata
    assert back.retry_after_s == error.retry_after_s


@pytest.mark.parametrize("stack", ["sync", "aio"])
def test_a_bug_shows_in_the_log_and_not_on_the_wire(
    stack: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Prevents leaking paths and data to clients, and losing the traceback."""
    bug = KeyError("secret")
    with caplog.at_level(logging.ERROR, "serving.guard"):
        sent = received(bug) if stack == "sync" else asyncio.run(received_over_aio(bug))
    assert sent.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(sent.details())
    assert "secret" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("character", ["x", "🙂", "\ud800"], ids=ascii)
def test_a_message_larger_than_headers_allow_still_arrives(character: str) -> None:
    """Prevents a refusal that quotes a huge value from becoming overload at clients with gRPC's own
    limit of headers: each byte of an emoji takes three in one of them."""
    with (
        raising_server(BadRequest("text", character * 100_000)) as address,
        grpc.insecure_channel(address) as calls,
        pytest.raises(grpc.RpcError) as caught,
    ):
        method(calls)(b"", timeout=10)
    back = from_rpc_error(caught.value)
    assert isinstance(back, BadRequest)
    assert back.field == "text"


def test_errors_of_grpc_itself_get_the_nearest_class() -> None:
    """Prevents bare RpcErrors reaching callers when nobody answered at all."""
    with raising_server(Draining()) as address:
        pass
    with channel(address) as calls:
        with pytest.raises(grpc.RpcError) as refused:
            method(calls)(b"", timeout=10)
        with pytest.raises(grpc.RpcError) as late:
            method(calls)(b"", timeout=0.05, wait_for_ready=True)
    unavailable = from_rpc_error(refused.value, "verify")
    assert isinstance(unavailable, PeerUnavailable)
    assert unavailable.peer == "verify"
    assert isinstance(from_rpc_error(late.value), DeadlineExceeded)
