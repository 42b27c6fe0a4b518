"""The life of a server process, sync and aio: ready line, health, reflection, drain, exit codes."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from serving.channel import channel

pytestmark = pytest.mark.parametrize("stack", ["sync", "aio"])

LONG_S = "600"


def command(stack: str, port: int, grace_s: str) -> list[str]:
    return [sys.executable, "-m", "tests.serving.hanging_server", stack, str(port), grace_s]


@contextmanager
def server(stack: str, grace_s: str = LONG_S) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A running server process and its address."""
    process = subprocess.Popen(command(stack, 0, grace_s), stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(out(process).readline())
        assert ready["event"] == "ready"
        assert ready["service"] == "hanger"
        assert ready["pid"] == process.pid
        yield process, ready["address"]
    finally:
        process.kill()
        process.wait()
        out(process).close()


def out(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def hanging_call(calls: Any) -> Any:
    call = calls.unary_stream("/test.Hanger/Hang")(b"")
    assert next(iter(call)) == b"started"
    return call


def health(calls: grpc.Channel, name: str) -> str:
    stub = health_pb2_grpc.HealthStub(calls)
    status = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def test_health_and_reflection(stack: str) -> None:
    """Prevents a service that orchestrators and debugging tools cannot see."""
    with server(stack) as (_, address), channel(address) as calls:
        assert [health(calls, name) for name in ("", "liveness", "readiness")] == ["SERVING"] * 3
        assert "test.Hanger" in ProtoReflectionDescriptorDatabase(calls).get_services()


def test_a_signal_drains_and_ends_when_calls_have_ended(stack: str) -> None:
    """Prevents a roll-out that cuts off running requests, and one that never ends."""
    with server(stack) as (process, address), channel(address) as calls:
        call = hanging_call(calls)
        process.send_signal(signal.SIGTERM)
        assert out(process).readline() == "draining\n"
        assert call.is_active()
        call.cancel()
        assert process.wait(timeout=120) == 0


def test_a_signal_right_after_a_pause_or_the_ready_line_is_not_lost(stack: str) -> None:
    """Prevents a service that never ends: the kernel may give such a signal to any thread."""
    for _ in range(3):
        with server(stack) as (process, _):
            for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM):
                process.send_signal(number)
            assert process.wait(timeout=120) == 0


def test_the_drain_has_a_limit(stack: str) -> None:
    """Prevents one endless stream from keeping a process for ever."""
    with server(stack, grace_s="0.1") as (process, address), channel(address) as calls:
        call = hanging_call(calls)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        with pytest.raises(grpc.RpcError):
            next(call)


def test_a_second_signal_ends_at_once(stack: str) -> None:
    """Prevents a user at a terminal from having to wait for the drain."""
    with server(stack) as (process, address), channel(address) as calls:
        call = hanging_call(calls)
        process.send_signal(signal.SIGINT)
        assert out(process).readline() == "draining\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0
        with pytest.raises(grpc.RpcError):
            next(call)


def test_a_port_in_use_is_one_line_and_exit_code_1(stack: str) -> None:
    """Prevents two processes sharing a port silently, and a traceback instead of advice."""
    with server(stack) as (_, address):
        port = int(address.rpartition(":")[2])
        second = subprocess.run(
            command(stack, port, LONG_S), capture_output=True, text=True, timeout=120
        )
    assert second.returncode == 1
    assert second.stdout == ""
    assert second.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
    assert "--port" in second.stderr
