"""A pair over a TCP connection: for CPUs what serving.transport.nccl_pair is for GPUs."""

import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from torch import Tensor

from domino_serve.v1 import draft_pb2
from serving.transport.pair import PairLost

TOKEN_BYTES: Final = 32
_STRANGER_S: Final = 1.0  # for whoever connects to say the token
# For documentation, nobody's: asking for the way there sends nothing.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


class TcpPair:
    """As serving.transport.pair.Pair."""

    def __init__(self, own: socket.socket, address: str, token: bytes, *, waits: bool) -> None:
        """address: where rank 0 waits, on `own`; for rank 1 that is a socket to connect."""
        self._socket, self._address, self._token, self._waits = own, address, token, waits
        self._busy, self._is_closed = threading.Lock(), False

    @classmethod
    def offered(cls) -> "TcpPair":
        """Rank 0, at an address of this host; raises OSError."""
        host = own_address()
        own = socket.create_server((host, 0), family=_family(host))
        address = f"{host}:{own.getsockname()[1]}"
        return cls(own, address, secrets.token_bytes(TOKEN_BYTES), waits=True)

    @classmethod
    def of(cls, group: draft_pb2.NcclGroup) -> "TcpPair":
        """Rank 1; raises ValueError."""
        if not group.address or len(group.token) != TOKEN_BYTES:
            raise ValueError("it is a group of GPUs, and this draft service has none")
        own = socket.socket(_family(group.address.rpartition(":")[0]))
        return cls(own, group.address, group.token, waits=False)

    def group(self) -> draft_pb2.NcclGroup:
        return draft_pb2.NcclGroup(address=self._address, token=self._token)

    def join(self, until: float) -> None:
        with self._used():
            if self._waits:
                with self._socket as waiting:
                    self._socket = self._known(waiting, until)
                if self._is_closed:  # meanwhile, which has ended the other socket
                    raise OSError
            else:
                host, _, port = self._address.rpartition(":")
                where = str(ipaddress.ip_address(host)), int(port)  # no name is asked for
                self._within(until).connect(where)
                self._socket.sendall(self._token)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self, buffer: Tensor) -> None:
        """Nothing: a CPU sends while somebody waits for it."""

    def finish(self, buffer: Tensor, until: float) -> None:
        with self._used():
            self._within(until).sendall(buffer.numpy().data)

    def receive(self, buffer: Tensor, until: float) -> None:
        with self._used():
            self._fill(buffer.numpy().data, until)

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):  # who waits there wakes
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._busy:
            self._socket.close()

    def _known(self, waiting: socket.socket, until: float) -> socket.socket:
        """A connection of the first that says the token; others are sent away."""
        while True:
            waiting.settimeout(_left(until))
            self._socket, _ = waiting.accept()
            said = bytearray(TOKEN_BYTES)
            with suppress(OSError):
                self._fill(memoryview(said), min(until, time.monotonic() + _STRANGER_S))
                if hmac.compare_digest(said, self._token):
                    return self._socket
            self._socket.close()
            self._socket = waiting

    def _fill(self, view: memoryview, until: float) -> None:
        while view:
            count = self._within(until).recv_into(view)
            if not count:
                raise OSError("the other side has closed")
            view = view[count:]

    def _within(self, until: float) -> socket.socket:
        """The socket, whose next call ends by then."""
        self._socket.settimeout(_left(until))
        return self._socket

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._busy:
            try:
                yield
            except (OSError, ValueError, OverflowError) as error:  # the last two: of an address
                raise PairLost("was closed" if self._is_closed else str(error)) from None


def own_address() -> str:
    """The address that other hosts find this one at; its own alone where it reaches none."""
    for family, elsewhere in _ELSEWHERE:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
