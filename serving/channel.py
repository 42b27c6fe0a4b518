"""gRPC options of every client and server, in one place, and channels made with them."""

from typing import Final

import grpc

Option = tuple[str, int | str]

_MAX_MESSAGE_BYTES = 64 << 20

_COMMON: Final[tuple[Option, ...]] = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: Final[tuple[Option, ...]] = (
    *_COMMON,
    # gRPC's own backoff grows to two minutes, far longer than a service takes to come back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Services talk to each other directly, whatever proxy the environment names for the web.
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: Final[tuple[Option, ...]] = (
    *_COMMON,
    # Must allow the pings above: the default of 5 minutes ends connections during long prefills.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Otherwise a second process shares the port silently.
    ("grpc.so_reuseport", 0),
)


def channel(address: str) -> grpc.Channel:
    """Plaintext channel to host:port; connects lazily and reconnects by itself."""
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def aio_channel(address: str) -> grpc.aio.Channel:
    """The same for grpc.aio; belongs to the running event loop."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
