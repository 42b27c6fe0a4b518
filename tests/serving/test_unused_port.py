"""The port of a process that others must find again."""

import errno
import socket
from collections import deque
from pathlib import Path

import pytest

from serving import unused_port as module
from serving.unused_port import unused_port

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not RANGE.exists(), reason="the range of ports that Linux hands out")
def test_no_outgoing_connection_takes_it() -> None:
    """Prevents a restarted service that finds its port taken by a client's end of a connection."""
    first, last = map(int, RANGE.read_text().split())
    if first <= module._FIRST:
        pytest.skip(f"this machine hands out {first} to {last}")
    assert not any(first <= unused_port() <= last for _ in range(50))


def test_a_port_that_is_listened_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents two services of one start on one port."""
    with socket.create_server(("127.0.0.1", unused_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "_given", deque[int](maxlen=1))
        monkeypatch.setattr(module, "_FIRST", port)
        monkeypatch.setattr(module, "_LAST", port + 9)
        assert port not in {unused_port() for _ in range(200)}


def test_no_port_is_given_twice_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents two services that are started together, and listen later, on one port."""
    monkeypatch.setattr(module, "_given", deque[int](maxlen=500))
    monkeypatch.setattr(module, "_LAST", module._FIRST + 99)
    found = [unused_port() for _ in range(40)]
    assert len(set(found)) == len(found)


def test_a_host_of_another_machine_is_an_error() -> None:
    """Prevents a search without end."""
    with pytest.raises(OSError) as refused:
        unused_port("192.0.2.1")
    assert refused.value.errno == errno.EADDRNOTAVAIL
