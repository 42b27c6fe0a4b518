"""Life of a grpc.aio server process: bind, start, ready, wait for a signal, drain, stop."""

import asyncio
import logging
import signal
from contextlib import suppress

import grpc

from serving.channel import SERVER_OPTIONS
from serving.garbage import settle
from serving.malformed import AioRefuseMalformed
from serving.metrics import READY
from serving.metrics_page import MetricsPage
from serving.peers import AioGated
from serving.process import LIVENESS, READINESS, announce, bind
from serving.service_options import DEFAULTS, ServiceOptions

_log = logging.getLogger(__name__)


class AioServer:
    """Add servicers to `grpc`, then start(), ready(), wait(). Make it inside the event loop.

    grace_s: time running calls get after the first signal.
    notice_s: time before that in which new calls are still taken, though it is not ready any more:
    whoever spreads calls over several servers notices meanwhile.
    """

    def __init__(
        self,
        service: str,
        *,
        host: str,
        port: int,
        grace_s: float,
        notice_s: float = 0.0,
        options: ServiceOptions = DEFAULTS,
    ) -> None:
        self.grpc = grpc.aio.server(
            interceptors=[*map(AioGated, options.gates()), AioRefuseMalformed()],
            options=SERVER_OPTIONS,
        )
        self.address = bind(self.grpc, host, port, options.incoming(), options.listen)
        self._page = MetricsPage.open(host, options.metrics_port)
        self.draining = asyncio.Event()
        self._signals: asyncio.Queue[int] = asyncio.Queue()
        self._service = service
        self._grace_s, self._notice_s = grace_s, notice_s

    async def start(self, *services: str) -> None:
        """Answers calls, not ready yet; `services` are full gRPC names, for reflection."""
        from grpc_health.v1 import health, health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)
        await self._set_ready(False)
        await self.grpc.start()

    async def ready(self) -> None:
        """Tells everybody; from here on a signal drains."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signals.put_nowait, number)
        settle()
        await self._set_ready(True)
        announce(self._service, self.address)

    async def wait(self) -> int:
        """Exit code, after a signal and the drain; a second signal ends running calls at once."""
        await self._signals.get()
        await self._set_ready(False)
        await self._notice()
        _log.info("draining, %g s at most; a second signal ends at once", self._grace_s)
        self.draining.set()
        drain = asyncio.ensure_future(self.grpc.stop(self._grace_s))
        second = asyncio.ensure_future(self._signals.get())
        await asyncio.wait((drain, second), return_when=asyncio.FIRST_COMPLETED)
        if second.done():
            await self.grpc.stop(None)
        second.cancel()
        await drain
        if self._page:
            self._page.close()
        return 0

    async def _notice(self) -> None:
        """Returns after notice_s, or with the next signal, which the drain finds again."""
        if self._notice_s:
            _log.info("not ready any more, new calls are taken for %g s", self._notice_s)
            with suppress(TimeoutError):
                number = await asyncio.wait_for(self._signals.get(), self._notice_s)
                self._signals.put_nowait(number)

    async def _set_ready(self, ready: bool) -> None:
        from grpc_health.v1.health_pb2 import HealthCheckResponse

        serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        READY.set(ready)
        await self._health.set(LIVENESS, serving)
        for name in READINESS:
            await self._health.set(name, serving if ready else not_serving)
