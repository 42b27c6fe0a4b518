"""Who calls: names from the certificate of a call's other side, and refusing the unknown ones.

Interceptors of every server; a gate raises a ServingError for a call that may not pass.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import grpc

from serving.errors import PermissionDenied
from serving.guard import aio_guard, guard

Gate = Callable[[Any], None]

_OPEN: Final = ("/grpc.health.v1.Health/",)  # whoever got through TLS may ask


def certificate_names(context: Any) -> list[str]:
    """Subject alternative names of the caller's certificate, else its common name; often none."""
    found = context.auth_context()
    names: Iterable[bytes] = found.get("x509_subject_alternative_name", ())
    listed = [name.decode(errors="replace") for name in names if name]
    return listed or [
        name.decode(errors="replace") for name in found.get("x509_common_name", ()) if name
    ]


class AllowedCallers:
    """A gate for holders of certificates with certain names."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def __call__(self, context: Any) -> None:
        found = certificate_names(context)
        if self._names.isdisjoint(found):
            shown = ", ".join(found) or "none"
            raise PermissionDenied(f"the certificate's names ({shown}) are not in --tls-allow")


class Gated(grpc.ServerInterceptor):
    """Interceptor of sync servers."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "grpc.RpcMethodHandler[Any, Any] | None"],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        wrapped: grpc.RpcMethodHandler[Any, Any] | None = _wrapped(
            continuation(handler_call_details), handler_call_details.method, self._checked
        )
        return wrapped

    def _checked(self, behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def checked(request: Any, context: Any) -> Any:
            with guard(context):
                self._gate(context)
            return behavior(request, context)

        return checked


class AioGated(grpc.aio.ServerInterceptor):
    """Interceptor of aio servers."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        return _wrapped(handler, handler_call_details.method, self._checked)

    def _checked(self, behavior: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def checked(request: Any, context: Any) -> Any:
            await self._check(context)
            return await behavior(request, context)

        async def checked_items(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._check(context)
            async for item in behavior(request, context):
                yield item

        return checked_items if inspect.isasyncgenfunction(behavior) else checked

    async def _check(self, context: Any) -> None:
        async with aio_guard(context):
            self._gate(context)


def _wrapped(handler: Any, method: str, wrap: Callable[[Any], Any]) -> Any:
    """The handler behind the gate, unless its method is open."""
    if handler is None or method.startswith(_OPEN):
        return handler
    sides = ("unary", "stream")
    kind = f"{sides[handler.request_streaming]}_{sides[handler.response_streaming]}"
    return handler._replace(**{kind: wrap(getattr(handler, kind))})
