"""A TCP port for a process that is to be found at the same place again after a restart."""

import errno
import random
import socket
from collections import deque
from typing import Final

# Below what systems hand out by themselves (Linux from 32768, others from 49152): there any
# outgoing connection may take the port between two listeners.
_FIRST: Final = 10_000
_LAST: Final = 32_767
_given: Final[deque[int]] = deque(maxlen=500)  # mostly not listened on yet


def unused_port(host: str = "127.0.0.1") -> int:
    """One that nobody listens on now, and not one of the last that this process was given; raises
    OSError when nobody can listen at `host`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        if port in _given:
            continue
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            _given.append(port)
            return port
