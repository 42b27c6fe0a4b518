"""Spans of a request's way through the services; nothing at all until set_up_traces.

Parents travel as W3C traceparent: in metadata from client to router to verify, inside SessionOpen
from verify to draft, whose stream outlives every request.
"""

import importlib.util
from collections.abc import Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from serving.errors import ServingError
from serving.options import OptionError

if TYPE_CHECKING:
    from serving.otel import Tracing

_HEADER: Final = "traceparent"
_of_process: "dict[str, Tracing]" = {}


def set_up_traces(service: str, endpoint: str | None) -> None:
    """endpoint: URL of an OTLP collector; None traces nothing, and sends what is left of what was
    traced. Raises OptionError."""
    if before := _of_process.pop("tracing", None):
        before.close()
    if endpoint is None:
        return
    if not endpoint.startswith(("http://", "https://")):
        raise OptionError("trace_endpoint", endpoint, "must begin with http:// or https://")
    if importlib.util.find_spec("opentelemetry") is None:
        raise OptionError("trace_endpoint", endpoint, "needs pip install 'domino-serve[otel]'")
    from serving.otel import Tracing

    _of_process["tracing"] = Tracing(service, endpoint)


def are_on() -> bool:
    """Whether spans go anywhere."""
    return bool(_of_process)


class Span:
    """Part of a trace. A context manager, or ended by end()."""

    def __init__(self, name: str, parent: str = "", **attributes: str | int) -> None:
        """parent: a traceparent; anything else begins a trace."""
        self._span: Any = None
        self.traceparent = ""
        if tracing := _of_process.get("tracing"):
            self._span = tracing.start(name, parent, attributes)
            self.traceparent = tracing.traceparent(self._span)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, empty when nothing is traced."""
        return self.traceparent[3:35]

    def set(self, **attributes: str | int | float) -> None:
        """Notes what has become known."""
        if self._span:
            self._span.set_attributes(attributes)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing of an error but its reason or type: its message may quote the request."""
        if self._span:
            if error:
                reason = error.reason if isinstance(error, ServingError) else type(error).__name__
                self._span.set_attribute("error.type", reason)
            self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(error)


# The traceparent that calls made by the running task belong to.
CURRENT: Final[ContextVar[str]] = ContextVar("traceparent", default="")


def metadata() -> tuple[tuple[str, str], ...]:
    """For a call made by the running task."""
    current = CURRENT.get()
    return ((_HEADER, current),) if current else ()


def parent_of(context: Any) -> str:
    """The traceparent that a call came with; not looked for while nothing is traced."""
    if not are_on():
        return ""
    sent: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
    return next((str(value) for key, value in sent if key == _HEADER), "")
