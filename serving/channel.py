"""gRPC options of every client and server, in one place, and channels made with them."""

from typing import Final

import grpc

from serving.renewing_channel import RenewingChannel
from serving.tls import Tls
from serving.transport.unix_socket import is_unix

Option = tuple[str, int | str]

_MAX_MESSAGE_BYTES = 64 << 20
_MAX_METADATA_BYTES = 16 << 10
_KEEPALIVE_MS = 10_000

_COMMON: Final[tuple[Option, ...]] = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # Both limits, as between the two gRPC refuses at random.
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
)


def keepalive(time_ms: int) -> tuple[Option, ...]:
    """For both sides of a connection: a ping each `time_ms`, and none is too many.

    A peer that hangs, or a network that swallows packets, is noticed after twice that time; the
    default of servers ends connections that are quiet for minutes, as in a long prefill.
    """
    return (
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", time_ms),
        ("grpc.http2.ping_timeout_ms", time_ms),  # a minute by default, which is what counts
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", time_ms // 2),
    )


CHANNEL_OPTIONS: Final[tuple[Option, ...]] = (
    *_COMMON,
    *keepalive(_KEEPALIVE_MS),
    # gRPC's own backoff grows to two minutes, far longer than a service takes to come back.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Services talk to each other directly, whatever proxy the environment names for the web.
    ("grpc.enable_http_proxy", 0),
)

SERVER_OPTIONS: Final[tuple[Option, ...]] = (
    *_COMMON,
    *keepalive(_KEEPALIVE_MS),
    # Otherwise a second process shares the port silently.
    ("grpc.so_reuseport", 0),
)

_of_process: dict[str, Tls] = {}


def connect_with(tls: Tls | None) -> None:
    """What this process's channels use from now on, but those that are given their own."""
    _of_process.clear()
    if tls:
        _of_process["tls"] = tls


def channel(address: str, tls: Tls | None = None) -> grpc.Channel:
    """Channel to host:port or unix:/path, plaintext without TLS; connects lazily, and again."""
    tls = tls or _of_process.get("tls")
    if tls is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, tls.channel_credentials(), options=_options(address, tls))


def aio_channel(address: str, tls: Tls | None = None) -> grpc.aio.Channel:
    """The same for grpc.aio; belongs to the running event loop, takes up renewed certificates."""
    tls = tls or _of_process.get("tls")
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return RenewingChannel(lambda: _aio_secure(address, tls), tls.pems)


def _aio_secure(address: str, tls: Tls) -> grpc.aio.Channel:
    options = _options(address, tls)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def _options(address: str, tls: Tls) -> tuple[Option, ...]:
    # gRPC would look for a socket's path in the certificate.
    name = tls.server_name or ("localhost" if is_unix(address) else None)
    if name is None:
        return CHANNEL_OPTIONS
    return (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
