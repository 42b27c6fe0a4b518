"""One request measured: its responses in; metrics, its line in the log and its span out."""

import asyncio
import logging
import time
from types import TracebackType
from typing import Self

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from router.callers import CALLER
from router.metrics import (
    FIRST_TOKEN,
    GENERATION_TOKENS,
    PROMPT_TOKENS,
    REQUEST,
    SUCCESSES,
    TOKEN,
)
from serving.errors import ServingError
from serving.log import CURRENT_REQUEST, about
from serving.trace import CURRENT, Span

_log = logging.getLogger(__name__)


class RequestMeter:
    """One request's times, from when it is made, and its line in the log. A context manager."""

    def __init__(self, request_id: str, parent: str = "") -> None:
        """parent: traceparent of the client's span."""
        self._request_id, self._caller = request_id, CALLER.get().name
        self._span = Span("request", parent, request_id=request_id, caller=self._caller)
        self._began = time.monotonic()
        self._first = 0.0
        self._tokens = 0

    def sent(self, response: pb.GenerateResponse) -> None:
        """Notes a response that has gone to the client."""
        now = time.monotonic()
        if tokens := len(response.chunk.token_ids):
            GENERATION_TOKENS.inc(by=tokens)
            if not self._tokens:
                self._first = now
                FIRST_TOKEN.observe(now - self._began)
            self._tokens += tokens
        if response.HasField("complete"):
            self._end(response.complete, now)

    def _end(self, end: pb.GenerateComplete, now: float) -> None:
        reason = spec.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower()
        mode = spec.Mode.Name(end.speculation.mode).removeprefix("MODE_").lower()
        SUCCESSES.inc(reason, mode)
        PROMPT_TOKENS.inc(by=end.usage.prompt_tokens)
        REQUEST.observe(now - self._began)
        if self._tokens > 1:
            TOKEN.observe((now - self._first) / (self._tokens - 1))
        stats = end.speculation
        self._log(
            f"finished ({reason}) after {end.usage.completion_tokens} tokens",
            finish_reason=reason,
            mode=mode,
            prompt_tokens=end.usage.prompt_tokens,
            completion_tokens=end.usage.completion_tokens,
            ttft_ms=round(1e3 * (self._first - self._began), 1) if self._tokens else None,
            total_ms=round(1e3 * (now - self._began), 1),
            acceptance_length=round(stats.step_tokens / max(stats.verify_steps, 1), 2),
        )

    def __enter__(self) -> Self:
        CURRENT_REQUEST.set(self._request_id)
        CURRENT.set(self._span.traceparent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Logs why it failed: the reason and the field, not the message, which may quote text."""
        if isinstance(error, ServingError):
            field = getattr(error, "field", None)
            about_field = f" ({field})" if field else ""
            self._log(f"failed: {error.reason}{about_field}", reason=error.reason, field=field)
        elif isinstance(error, asyncio.CancelledError):
            self._log("ended: its client left", reason="CANCELLED")
        self._span.end(error)

    def _log(self, what: str, **fields: str | int | float | None) -> None:
        shown = {"caller": self._caller, "trace_id": self._span.trace_id, **fields}
        self._span.set(**{name: value for name, value in fields.items() if value is not None})
        extra = about(self._request_id, **shown)
        _log.info("request %s %s", self._request_id, what, extra=extra)
