"""Ends a gRPC call with the status of the ServingError its handler raised; bugs stay in the log."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from serving.errors import InternalError, ServingError, error_classes, to_status
from serving.metrics import REQUESTS_FAILED

_log = logging.getLogger(__name__)

REQUESTS_FAILED.show(*error_classes())


@contextmanager
def guard(context: grpc.ServicerContext) -> Iterator[None]:
    """Body of a sync handler, unary or generator: `with guard(context): ...`."""
    try:
        yield
    except Exception as error:
        context.abort_with_status(to_status(_presentable(error)))


@asynccontextmanager
async def aio_guard(context: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[None]:
    """Body of an aio handler: `async with aio_guard(context): ...`."""
    try:
        yield
    except Exception as error:
        status = to_status(_presentable(error))
        await context.abort(status.code, status.details, status.trailing_metadata)


def _presentable(error: Exception) -> ServingError:
    if not isinstance(error, ServingError):
        _log.error("unexpected error in a handler", exc_info=error)
        error = InternalError()
    REQUESTS_FAILED.inc(error.reason)
    return error
