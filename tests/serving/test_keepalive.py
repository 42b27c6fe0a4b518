"""Pings of both sides agree: a connection lives through a call that says nothing for long."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from serving.channel import CHANNEL_OPTIONS, SERVER_OPTIONS, keepalive

Options = tuple[tuple[str, int | str], ...]

PING_MS = 1000  # gRPC sends none more often
METHOD = "/test.Silent/Call"
# A process that stood still for a while is no dead peer.
PATIENT = {"grpc.keepalive_timeout_ms": 60_000, "grpc.http2.ping_timeout_ms": 60_000}
PINGING: Options = tuple((dict(keepalive(PING_MS)) | PATIENT).items())


@contextmanager
def silent(options: Options, over: threading.Event) -> Iterator[str]:
    """A service whose only call says nothing until it is over; its address."""

    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert over.wait(120)
        return b"done"

    handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(call)}
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Silent", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def ask(address: str) -> bytes:
    with grpc.insecure_channel(address, options=PINGING) as channel:
        call: Any = channel.unary_unary(METHOD)
        answer: bytes = call(b"", timeout=200)
    return answer


def assert_hangs_up(address: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(address)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "Too many pings" in str(caught.value.details())


def test_a_long_silence_is_no_reason_to_hang_up() -> None:
    """Prevents GOAWAY too_many_pings, which ends all requests of a connection in a prefill.

    A server that does not agree shows that pings are sent and counted: while it hangs up twice,
    ours gets as many.
    """
    over = threading.Event()
    with (
        silent(PINGING, over) as ours,
        silent((), over) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(ask, ours)
        try:
            assert_hangs_up(other)
            assert_hangs_up(other)
        finally:
            over.set()
        assert answer.result() == b"done"


@pytest.mark.parametrize("options", [CHANNEL_OPTIONS, SERVER_OPTIONS])
def test_both_sides_of_our_services_agree(options: Options) -> None:
    """Prevents one side's interval from being changed alone."""
    assert set(keepalive(10_000)) <= set(options)
    values = dict(keepalive(10_000))
    allowed = values["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(allowed) <= int(values["grpc.keepalive_time_ms"]) / 2
