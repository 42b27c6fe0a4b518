"""Takes verify services of this host to the servicer without gRPC's threads in between."""

import sys
import threading
from collections.abc import Callable

from draft_service.config import DraftServiceConfig
from serving.transport.frames import Frames
from serving.transport.frames_listener import FramesListener


def listen(config: DraftServiceConfig, serve: Callable[[Frames], None]) -> str:
    """Calls `serve` with each connection in a thread of its own; the socket's name, "" for none.

    None where calls have to be encrypted or their callers to be known, which a socket is not, and
    on systems without abstract sockets.
    """
    if not config.step_socket or config.tls_cert or sys.platform != "linux":
        return ""
    listener = FramesListener()

    def accept() -> None:
        while frames := listener.accept():
            threading.Thread(target=serve, args=(frames,), name="steps", daemon=True).start()

    threading.Thread(target=accept, name="step-socket", daemon=True).start()
    return listener.name
