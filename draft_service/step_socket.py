"""Takes verify services of this host to the servicer without gRPC's threads in between."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from draft_service.config import DraftServiceConfig
from serving.transport.frames import Frames
from serving.transport.frames_listener import FramesListener
from serving.transport.spin import spin_s

END_S: Final = 10.0  # a step takes less

Serve = Callable[[Frames], None]


class StepSocket:
    """Calls `serve` with each connection in a thread of its own."""

    def __init__(self, serve: Serve, *, spin_s: float = 0.0) -> None:
        self._listener, self._serve = FramesListener(spin_s=spin_s), serve
        self._threads: list[threading.Thread] = []
        self.name = self._listener.name
        self._acceptor = threading.Thread(target=self._accept, name="step-socket", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Returns when no stream runs any more; whoever calls has ended them.

        A thread that is inside torch when Python ends takes the process down with it.
        """
        self._listener.close()
        until = time.monotonic() + END_S
        for thread in [self._acceptor, *self._threads]:
            thread.join(max(0.0, until - time.monotonic()))

    def _accept(self) -> None:
        while frames := self._listener.accept():
            thread = threading.Thread(target=self._serve, args=(frames,), name="steps", daemon=True)
            self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
            thread.start()


def listen(config: DraftServiceConfig, serve: Serve) -> StepSocket | None:
    """None where calls have to be encrypted or their callers to be known, which a socket is not,
    and on systems without abstract sockets."""
    if not config.step_socket or config.tls_cert or sys.platform != "linux":
        return None
    return StepSocket(serve, spin_s=spin_s(config.spin_s, config.device))
