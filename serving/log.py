"""Log records in, lines on stderr out: text for people or one JSON object a line.

Records about a request carry its id, by CURRENT_REQUEST or `extra=about(request_id)`; what a
request says, text or token ids, is never logged.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]

# The request that the running code serves, for records that do not say.
CURRENT_REQUEST: Final[ContextVar[str]] = ContextVar("request", default="")

# Attributes of a record that travel as fields of its JSON object.
FIELDS: Final = (
    "request_id", "caller", "trace_id", "finish_reason", "mode", "prompt_tokens",
    "completion_tokens", "ttft_ms", "total_ms", "acceptance_length", "reason", "field",
)  # fmt: skip


def about(request_id: str, **fields: Any) -> dict[str, Any]:
    """The `extra` of a record about a request; `fields` are some of FIELDS."""
    assert fields.keys() <= set(FIELDS), f"unknown fields of a record: {fields.keys()}"
    return {"request_id": request_id, **fields}


@contextmanager
def serving_request(request_id: str) -> Iterator[None]:
    """The block's records are about this request, those of the thread or task alone."""
    before = CURRENT_REQUEST.get()
    CURRENT_REQUEST.set(request_id)
    try:
        yield
    finally:
        # No reset by token: an abandoned generator may be ended by another thread.
        CURRENT_REQUEST.set(before)


def set_up_logs(service: str, format: LogFormat) -> None:
    """Replaces whatever handlers there are."""
    if format == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines(service))
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    else:
        layout = f"%(asctime)s {service} %(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=layout, force=True)


class JsonLines(logging.Formatter):
    """time (UTC), level, service, logger, message, then FIELDS that the record has."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := CURRENT_REQUEST.get():
            line["request_id"] = request_id
        for name in FIELDS:
            if (value := getattr(record, name, None)) not in (None, ""):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
