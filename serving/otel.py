"""What of tracing needs the OpenTelemetry SDK (extra `otel`); serving.trace is its face."""

import os
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# Of one batch, in seconds; the end of the process waits for the last one.
_TIMEOUT: Final = "OTEL_EXPORTER_OTLP_TIMEOUT"
_CARRIER: Final = TraceContextTextMapPropagator()


class Tracing:
    """Sends finished spans in batches, from a thread of its own and when the process ends."""

    def __init__(self, service: str, endpoint: str) -> None:
        resource = Resource.create({"service.name": f"domino-{service}"})
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=float(os.environ.get(_TIMEOUT, 2)))
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("domino-serve")

    def close(self) -> None:
        """Sends what is left and ends the thread."""
        self._provider.shutdown()

    def start(self, name: str, parent: str, attributes: Mapping[str, str | int]) -> trace.Span:
        """A span below `parent`, or the first one of a trace."""
        context = _CARRIER.extract({"traceparent": parent})
        return self._tracer.start_span(
            name, context, kind=trace.SpanKind.SERVER, attributes=attributes
        )

    def traceparent(self, span: trace.Span) -> str:
        """What children are given."""
        carrier: dict[str, str] = {}
        _CARRIER.inject(carrier, trace.set_span_in_context(span))
        return carrier.get("traceparent", "")
