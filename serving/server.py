"""Life of a sync gRPC server process: bind, start, ready, wait for a signal, drain, stop."""

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

import grpc

from serving.channel import SERVER_OPTIONS
from serving.garbage import settle
from serving.malformed import RefuseMalformed
from serving.metrics import READY
from serving.metrics_page import MetricsPage
from serving.peers import Gated
from serving.process import LIVENESS, READINESS, announce, bind
from serving.service_options import DEFAULTS, ServiceOptions

_log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_WAKE_S: Final = 1.0


class Server:
    """Add servicers to `grpc`, then start(), ready(), wait(). Binds when made.

    max_workers: handler threads; each running stream holds one.
    grace_s: time running calls get after the first signal.
    """

    def __init__(
        self,
        service: str,
        *,
        host: str,
        port: int,
        grace_s: float,
        max_workers: int = 64,
        options: ServiceOptions = DEFAULTS,
    ) -> None:
        self._handlers = ThreadPoolExecutor(max_workers, service)
        self.grpc = grpc.server(
            self._handlers,
            interceptors=[*map(Gated, options.gates()), RefuseMalformed()],
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=max_workers,  # more would queue for a thread without a bound
        )
        self.address = bind(self.grpc, host, port, options.incoming(), options.listen)
        self._page = MetricsPage.open(host, options.metrics_port)
        self.draining = threading.Event()
        self._service = service
        self._grace_s = grace_s
        # Exit codes of signals and fail(), None once stopped. A SimpleQueue, since its put may
        # run inside a signal handler while get waits.
        self._ends: SimpleQueue[int | None] = SimpleQueue()

    def start(self, *services: str) -> None:
        """Answers calls, not ready yet; `services` are full gRPC names, for reflection."""
        from grpc_health.v1 import health, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)
        self._set_ready(False)
        self.grpc.start()

    def ready(self) -> None:
        """Tells everybody; from here on a signal drains. Main thread only."""
        for number in _SIGNALS:
            signal.signal(number, lambda *_: self._ends.put(0))
        settle()
        self._set_ready(True)
        announce(self._service, self.address)

    def fail(self) -> None:
        """Ends the process with exit code 1, for an engine that cannot go on. Any thread."""
        self._ends.put(1)

    def wait(self, on_drain: Callable[[], None] = lambda: None) -> int:
        """Exit code, after a signal or fail() and the drain. Main thread only.

        on_drain: called once when draining begins. A second signal ends the running calls at
        once, a third kills the process.
        """
        code = self._next_end()
        _log.info("draining, %g s at most; a second signal ends at once", self._grace_s)
        self.draining.set()
        self._set_ready(False)
        on_drain()
        self._drain()
        if self._page:
            self._page.close()
        return code or 0

    def stop(self) -> None:
        """Ends all calls at once, for a server that does not wait(); returns when their handlers
        have ended too. Repeatable."""
        self.grpc.stop(None).wait()
        self._handlers.shutdown()

    def _drain(self) -> None:
        stopped = self.grpc.stop(self._grace_s)
        threading.Thread(target=self._tell_end_of, args=(stopped,)).start()
        if self._next_end() is not None:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            self.stop()

    def _next_end(self) -> int | None:
        """Wakes now and then: a signal that the kernel gave to another thread interrupts no wait
        here, and Python runs its handler in this thread only."""
        while True:
            with suppress(Empty):
                return self._ends.get(timeout=_WAKE_S)

    def _tell_end_of(self, stopped: threading.Event) -> None:
        stopped.wait()
        self._ends.put(None)

    def _set_ready(self, ready: bool) -> None:
        from grpc_health.v1.health_pb2 import HealthCheckResponse

        serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        READY.set(ready)
        self._health.set(LIVENESS, serving)
        for name in READINESS:
            self._health.set(name, serving if ready else not_serving)
