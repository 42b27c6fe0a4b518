"""Messages over a connected Unix socket, each behind its length: no thread between two processes.

What gRPC's streams do in Python with four threads a process, for draft and verify of one host.
"""

import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Self, TypeVar

from google.protobuf.message import DecodeError, Message

MOST_BYTES: Final = 64 << 20  # of a message, as gRPC's limit
_LENGTH: Final = struct.Struct("<I")
_READ: Final = 1 << 20

M = TypeVar("M", bound=Message)


class FramesEnded(Exception):
    """The other side closed, or sent what is no message; the connection is of no use any more."""


class Frames:
    """One connection, used by one thread but for `cancel` and `is_open`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = bytearray()

    @classmethod
    def connected(cls, name: str) -> Self:
        """To the abstract socket of that name; OSError where it cannot be reached."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"\0{name}")
        except OSError:
            connection.close()
            raise
        return cls(connection)

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
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise FramesEnded(f"cannot be sent to: {error}") from error

    def receive(self, kind: type[M], timeout_s: float | None) -> M | None:
        """The next message; None when it is not there in time. Raises FramesEnded."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while (data := self._whole()) is None:
                left = None if until is None else max(0.0, until - time.monotonic())
                self._socket.settimeout(left)
                part = self._socket.recv(_READ)
                if not part:
                    raise FramesEnded("ended the stream")
                self._read += part
            return kind.FromString(data)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError as error:
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
