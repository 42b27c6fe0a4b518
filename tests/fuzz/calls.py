"""Handlers called as gRPC calls them, without the wire; what came of it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

# What a caller may be told; everything else is a fault of ours.
ALLOWED: Final = {
    *(grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION),
    *(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED),
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
}
HANG_S: Final = 60.0
EVENTS: Final = 4  # read of a stream of answers; then the client leaves


class Aborted(Exception):
    """How a handler ends a call."""


class Context:
    """A call seen from its handler."""

    def __init__(self) -> None:
        self.code: grpc.StatusCode | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._over = False

    def abort_with_status(self, status: grpc.Status) -> None:
        self.code = status.code
        raise Aborted

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return not self._over

    def cancel(self) -> None:
        self.end()

    def end(self) -> None:
        self._over = True
        while self._callbacks:
            self._callbacks.pop()()

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "fuzz"

    def time_remaining(self) -> float:
        return HANG_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """status: "OK", a status' name, or "crash"; failure: what is wrong with it, if anything."""

    status: str
    failure: str = ""


def call(handler: Callable[[Any, Any], Any], request: Any) -> Outcome:
    """A unary request; a stream of answers is left after some events."""
    context, began = Context(), time.monotonic()
    try:
        answer = handler(request, context)
        if isinstance(answer, Iterator):
            for _, _ in zip(range(EVENTS), answer, strict=False):
                pass
            context.end()
            for _ in answer:  # a client that left reads no more, the handler ends
                pass
        outcome = Outcome("OK")
    except Aborted:
        outcome = _aborted(context)
    except Exception as error:
        outcome = Outcome("crash", f"{type(error).__name__}: {error}")
    finally:
        context.end()
    if time.monotonic() - began > HANG_S:
        return Outcome(outcome.status, f"took {time.monotonic() - began:.0f} s")
    return outcome


def converse(handler: Callable[[Any, Any], Iterator[Any]], requests: Iterator[Any]) -> Outcome:
    """A stream of requests, to its end."""
    context = Context()
    try:
        for _ in handler(requests, context):
            pass
        return Outcome("OK")
    except Aborted:
        return _aborted(context)
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {error}")
    finally:
        context.end()


def _aborted(context: Context) -> Outcome:
    code = context.code
    assert code is not None
    return Outcome(code.name, "" if code in ALLOWED else f"status {code.name}")
