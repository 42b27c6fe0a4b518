"""Unix sockets: only their own user gets in, none is stolen, a dead process's is replaced."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from domino_client import Client
from domino_client.access import token_metadata
from serving.channel import channel
from serving.errors import StartError
from serving.option_type import OptionError
from serving.server import Server
from serving.service_options import ServiceOptions
from serving.tls import Tls
from serving.transport.unix_socket import claimed, path_of
from tests.recorded_models import PROMPTS
from tests.security.certificates import Authority
from tests.services.requests import generate
from tests.services.served import serve_verify
from tests.services.whole import whole

STACKS = ("sync", "aio")
SERVICES = ("draft", "verify", "router")


def at(folder: Path) -> str:
    return f"unix:{folder}/s.sock"


@contextmanager
def hanger(stack: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A server process on a socket, once it is ready or has ended."""
    command = [sys.executable, "-m", "tests.serving.hanging_server", stack, f"unix:{path}", "600"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    try:
        assert process.stdout is not None
        if line := process.stdout.readline():
            assert json.loads(line)["address"] == f"unix:{path}"
        yield process
    finally:
        process.kill()
        process.communicate()


def is_healthy(path: Path, tls: Tls | None = None) -> bool:
    with channel(f"unix:{path}", tls) as calls:
        stub = health_pb2_grpc.HealthStub(calls)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.parametrize("stack", STACKS)
def test_a_socket_is_its_users_alone_and_goes_with_the_server(stack: str, tmp_path: Path) -> None:
    """Prevents a door open to every user of the machine (gRPC's own mode is 755), and litter."""
    path = tmp_path / "made" / "s.sock"
    before = os.umask(0)
    try:
        with hanger(stack, path) as process:
            assert is_healthy(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    finally:
        os.umask(before)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("stack", STACKS)
def test_a_living_servers_socket_is_not_taken(stack: str, tmp_path: Path) -> None:
    """gRPC binds over a socket in use without a word: calls would go to the newcomer."""
    path = tmp_path / "s.sock"
    tmp_path.chmod(0o700)
    with hanger(stack, path), hanger(stack, path) as second:
        assert second.wait(60) == 1
        assert second.stderr is not None
        assert "is in use by another process" in second.stderr.read()
        assert is_healthy(path)


def test_a_killed_servers_socket_is_replaced(tmp_path: Path) -> None:
    """After a crash the service could not start again until somebody removed the file."""
    path = tmp_path / "s.sock"
    tmp_path.chmod(0o700)
    with hanger("sync", path) as first:
        first.kill()
        first.wait()
        assert path.is_socket()
        with hanger("sync", path):
            assert is_healthy(path)


def test_a_socket_goes_when_the_process_ends_before_it_serves(tmp_path: Path) -> None:
    """A checkpoint that does not load ends the process with its socket bound already."""
    code = (
        "import sys, grpc; from concurrent.futures import ThreadPoolExecutor as Pool\n"
        "from serving.process import bind\n"
        "server = grpc.server(Pool(1)); bind(server, '', 0, None, sys.argv[1])\n"
        "raise SystemExit(3)"
    )
    tmp_path.chmod(0o700)
    path = tmp_path / "s.sock"
    ended = subprocess.run([sys.executable, "-c", code, f"unix:{path}"], timeout=60, check=False)
    assert (ended.returncode, path.exists()) == (3, False)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o702])
def test_a_folder_others_can_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    """Another user would put a socket in the place of ours and be taken for the service."""
    tmp_path.chmod(mode)
    with pytest.raises(StartError, match=rf"mode {mode:o}.*with mode 700"):
        Server("x", host="", port=0, grace_s=1, options=ServiceOptions(listen=at(tmp_path)))
    tmp_path.chmod(0o700)


def test_what_lies_at_the_path_is_not_deleted(tmp_path: Path) -> None:
    """A mistyped path must not cost a file."""
    path = tmp_path / "s.sock"
    tmp_path.chmod(0o700)
    path.write_text("precious")
    with pytest.raises(StartError, match="is no socket"), claimed(f"unix:{path}"):
        raise AssertionError("was claimed")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="is no socket"), claimed(f"unix:{path}"):
        raise AssertionError("was claimed")


@pytest.mark.parametrize(
    "address",
    ["unix:relative.sock", "unix:", "host:1", "/run/s.sock", "unix:/a,b", "unix:/" + "a" * 107],
)
def test_addresses_that_are_no_sockets_are_refused_by_option(address: str) -> None:
    """gRPC says only that it cannot bind."""
    with pytest.raises(OptionError, match="option listen"):
        ServiceOptions(listen=address)
    with pytest.raises(OptionError):
        path_of(address)


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    """gRPC says only that it cannot bind."""
    with (
        pytest.raises(StartError, match="missing/folder: no folder for a socket: No such file"),
        claimed(f"unix:{tmp_path}/missing/folder/s.sock"),
    ):
        raise AssertionError("was claimed")


def test_a_full_queue_is_no_dead_process(tmp_path: Path) -> None:
    """A service too busy to answer at once would lose its socket to a second one."""
    tmp_path.chmod(0o700)
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(StartError, match="in use"), claimed(f"unix:{path}"):
            raise AssertionError("was claimed")


def test_tls_holds_on_sockets_too(tmp_path: Path) -> None:
    """An option that is silently ignored would let plaintext callers in."""
    issued = Authority(tmp_path / "ca").issue("localhost")
    options = ServiceOptions(listen=at(tmp_path / "folder"), **issued.flags())  # type: ignore[arg-type]
    server = Server("x", host="", port=0, grace_s=1, options=options)
    server.start()
    path = path_of(server.address)
    try:
        assert not is_healthy(path, issued.tls(server_name=None))  # answers: not ready yet
        with pytest.raises(grpc.RpcError):
            is_healthy(path)
    finally:
        server.stop()
    assert not path.exists()


def test_tokens_may_travel_through_a_socket() -> None:
    """Nobody else can read there, as little as on the loopback."""
    assert token_metadata("unix:/run/router.sock", None, "t")


def test_services_over_sockets_give_the_plain_answer(tmp_path: Path) -> None:
    """Prevents an address form that one of the services, or a channel between them, cannot take."""
    sockets = tmp_path / "sockets"
    listen = {name: {"listen": f"unix:{sockets}/{name}.sock"} for name in SERVICES}
    with serve_verify() as plain:
        expected, _ = generate(plain.stub, PROMPTS[0], 24)
    with whole(tmp_path / "target", **listen) as services:
        assert sorted(p.name for p in sockets.iterdir()) == sorted(f"{n}.sock" for n in SERVICES)
        with Client(services.router.address, timeout_s=60) as client:
            done = client.generate(token_ids=PROMPTS[0], max_tokens=24, ignore_eos=True)
        assert list(done.token_ids) == expected
        assert done.speculation.accepted_tokens > 0
    assert list(sockets.iterdir()) == []
