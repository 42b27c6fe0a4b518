"""Pings of both sides agree: a connection lives through a call that says nothing for long."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from serving.channel import CHANNEL_OPTIONS, SERVER_OPTIONS, keepalive

PING_MS = 1000  # gRPC sends none more often
PINGS = 7  # servers allow two too early ones
METHOD = "/test.Silent/Call"


@contextmanager
def silent(options: tuple[tuple[str, int | str], ...]) -> Iterator[str]:
    """A service whose only call says nothing for many pings; its address."""

    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        threading.Event().wait(PING_MS * PINGS / 1000)
        return b"done"

    handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(call)}
    server = grpc.server(ThreadPoolExecutor(1), options=options)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Silent", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def ask(address: str) -> bytes:
    options = keepalive(PING_MS)
    with grpc.insecure_channel(address, options=options) as channel:
        call: Any = channel.unary_unary(METHOD)
        answer: bytes = call(b"", timeout=60)
    return answer


def test_a_long_silence_is_no_reason_to_hang_up() -> None:
    """Prevents GOAWAY too_many_pings, which ends all requests of a connection in a prefill.

    A server that does not agree shows that pings are sent and counted.
    """
    agreeing = keepalive(PING_MS)
    with silent(agreeing) as ours, silent(()) as other, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, address) for address in (ours, other)]
        assert answers[0].result() == b"done"
        with pytest.raises(grpc.RpcError) as caught:
            answers[1].result()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "Too many pings" in str(caught.value.details())


@pytest.mark.parametrize("options", [CHANNEL_OPTIONS, SERVER_OPTIONS])
def test_both_sides_of_our_services_agree(options: tuple[tuple[str, int | str], ...]) -> None:
    """Prevents one side's interval from being changed alone."""
    assert set(keepalive(10_000)) <= set(options)
    values = dict(keepalive(10_000))
    allowed = values["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(allowed) <= int(values["grpc.keepalive_time_ms"]) / 2
