"""Requests whose bytes are no message of their method, such as text that is not UTF-8: the caller's
mistake, INVALID_ARGUMENT, where gRPC itself would report a fault of the server.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from serving.errors import BadRequest
from serving.guard import aio_guard, guard


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Stands for the request until its handler's context can be told."""

    reason: str

    def error(self) -> BadRequest:
        return BadRequest("request", f"{self.reason}; is all its text valid UTF-8?")


class RefuseMalformed(grpc.ServerInterceptor):
    """Interceptor of sync servers; streams of requests pass unchanged."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        checked: grpc.RpcMethodHandler[Any, Any] | None = _checking(
            continuation(handler_call_details), _sync
        )
        return checked


class AioRefuseMalformed(grpc.aio.ServerInterceptor):
    """Interceptor of aio servers; streams of requests pass unchanged."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        return _checking(await continuation(handler_call_details), _aio)


def _checking(handler: Any, wrap: Callable[[Any], Any]) -> Any:
    """The handler, reading tolerantly and refusing what could not be read."""
    if handler is None or handler.request_streaming or handler.request_deserializer is None:
        return handler
    kind = "unary_stream" if handler.response_streaming else "unary_unary"
    behavior = getattr(handler, kind)
    if inspect.isasyncgenfunction(behavior):
        return handler
    read = _tolerant(handler.request_deserializer)
    return handler._replace(request_deserializer=read, **{kind: wrap(behavior)})


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return read


def _sync(behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            with guard(context):
                raise request.error()
        return behavior(request, context)

    return checked


def _aio(behavior: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def checked(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            async with aio_guard(context):
                raise request.error()
        return await behavior(request, context)

    return checked
