"""What applications install to talk to a router: typed, sync and async, free of torch.

with Client("127.0.0.1:50050") as client:
    for chunk in client.stream("Once upon a time", max_tokens=64):
        print(chunk.text, end="")
"""

from domino_client.aio import AsyncClient, AsyncStream
from domino_client.client import Client, Stream
from domino_client.completion import Chunk, Completion, ModelInfo, Sampling, Speculation, Timings
from domino_client.request import ChatTurn, RequestArgs
from serving.errors import (
    BadRequest,
    DeadlineExceeded,
    Draining,
    InternalError,
    Overloaded,
    PeerUnavailable,
    PermissionDenied,
    ServingError,
    Unauthenticated,
)
from serving.tls import Tls

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "BadRequest",
    "ChatTurn",
    "Chunk",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "Draining",
    "InternalError",
    "ModelInfo",
    "Overloaded",
    "PeerUnavailable",
    "PermissionDenied",
    "RequestArgs",
    "Sampling",
    "ServingError",
    "Speculation",
    "Stream",
    "Timings",
    "Tls",
    "Unauthenticated",
]
