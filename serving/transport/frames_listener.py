"""Where processes of this user and host connect for `Frames`; the name goes by the handshake."""

import os
import secrets
import socket
import struct
from contextlib import suppress
from typing import Final

from serving.transport.frames import Frames

_UCRED: Final = struct.Struct("3i")  # pid, uid, gid


class FramesListener:
    """An abstract Unix socket under a name that cannot be guessed, for processes of this user.

    It has no file, so that nothing is left of a killed process.
    """

    def __init__(self, *, spin_s: float = 0.0) -> None:
        """spin_s: of its connections."""
        self._spin_s = spin_s
        self.name = f"domino-serve-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen()

    def accept(self) -> Frames | None:
        """The next connection; None once it is closed. Others' users are sent away."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self.close()  # where no file was left: who connected would wait for ever
                return None
            if _is_ours(connection):
                return Frames(connection, spin_s=self._spin_s)
            connection.close()

    def close(self) -> None:
        """Ends a waiting `accept`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _is_ours(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1]) == os.geteuid()
