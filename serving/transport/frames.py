"""Messages over a connected Unix socket, each behind its length: no thread between two processes.

What gRPC's streams do in Python with four threads a process, for draft and verify of one host.
"""

import math
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Self, TypeVar

from google.protobuf.message import DecodeError, Message

from serving.transport.spin import spinning

MOST_BYTES: Final = 64 << 20  # of a message, as gRPC's limit
_LENGTH: Final = struct.Struct("<I")
_READ: Final = 256 << 10  # what a socket's buffer holds at most

M = TypeVar("M", bound=Message)


class FramesEnded(Exception):
    """The other side closed, or sent what is no message; the connection is of no use any more."""


class Frames:
    """One connection, used by one thread but for `cancel` and `is_open`."""

    def __init__(self, connection: socket.socket, *, spin_s: float = 0.0) -> None:
        """spin_s: how long a message is looked for without sleeping, see serving.transport.spin."""
        connection.setblocking(False)
        self._socket, self._spin_s = connection, spin_s
        self._buffer, self._read = memoryview(bytearray(_READ)), bytearray()

    @classmethod
    def connected(cls, name: str, *, spin_s: float = 0.0) -> Self:
        """To the abstract socket of that name; OSError where it cannot be reached."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"\0{name}")
        except OSError:
            connection.close()
            raise
        return cls(connection, spin_s=spin_s)

    @property
    def is_open(self) -> bool:
        """False once the other side has closed, or this one."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
        except ValueError:
            return False  # closed here
        return not poll.poll(0)

    def send(self, message: Message, timeout_s: float | None) -> None:
        """Raises FramesEnded, also when the other side does not take it all in time."""
        data = message.SerializeToString()
        left = memoryview(_LENGTH.pack(len(data)) + data)
        until = _until(timeout_s)
        try:
            while left:
                with suppress(BlockingIOError):
                    left = left[self._socket.send(left) :]
                if left and not self._wait(select.POLLOUT, until):
                    raise FramesEnded("cannot be sent to: it takes nothing more")
        except (OSError, ValueError) as error:
            raise FramesEnded(f"cannot be sent to: {error}") from error

    def receive(self, kind: type[M], timeout_s: float | None) -> M | None:
        """The next message; None when it is not there in time. Raises FramesEnded."""
        until = _until(timeout_s)
        try:
            with spinning(min(until, time.monotonic() + self._spin_s)) as spins:
                while (data := self._whole()) is None:
                    if not self._take() and not spins() and not self._wait(select.POLLIN, until):
                        return None
            return kind.FromString(data)
        except (OSError, ValueError) as error:  # ValueError: closed here meanwhile
            raise FramesEnded(f"ended the stream: {error}") from error
        except DecodeError as error:
            raise FramesEnded("sent what is no message") from error

    def messages(self, kind: type[M]) -> Iterator[M]:
        """Every message until the other side closes, or this one is cancelled."""
        while True:
            try:
                message = self.receive(kind, None)
            except FramesEnded:
                return
            assert message is not None, "without a limit"
            yield message

    def cancel(self) -> None:
        """Wakes whoever waits here, who then ends; safe from any thread."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection."""
        self.cancel()
        self._socket.close()

    def _take(self) -> bool:
        """Reads what has come; False where nothing has."""
        try:
            count = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        if not count:
            raise FramesEnded("ended the stream")
        self._read += self._buffer[:count]
        return True

    def _wait(self, event: int, until: float) -> bool:
        """Sleeps until it can be tried again; False when it is too late for that."""
        left = until - time.monotonic()
        if left <= 0:
            return False
        poll = select.poll()
        poll.register(self._socket, event)
        poll.poll(None if left == math.inf else math.ceil(left * 1e3))
        return True

    def _whole(self) -> bytes | None:
        """Takes a message out of what was read."""
        start = _LENGTH.size
        if len(self._read) < start:
            return None
        (size,) = _LENGTH.unpack_from(self._read)
        if size > MOST_BYTES:
            raise FramesEnded(f"sent a message of {size} bytes")
        if len(self._read) < start + size:
            return None
        data = bytes(self._read[start : start + size])
        del self._read[: start + size]
        return data


def _until(timeout_s: float | None) -> float:
    """On the monotonic clock."""
    return math.inf if timeout_s is None else time.monotonic() + timeout_s
