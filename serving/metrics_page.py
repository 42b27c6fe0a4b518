"""The HTTP listener beside a service: /metrics for Prometheus, /liveness and /readiness for probes.

Off by default, so that only --metrics-port needs the library prometheus_client.
"""

import importlib.util
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from serving.errors import StartError
from serving.metrics import READY
from serving.process import LIVENESS

_log = logging.getLogger(__name__)

_IDLE_S: Final = 30.0  # a connection that asks nothing for so long is closed


class MetricsPage:
    """Answers from when it is made until close()."""

    @classmethod
    def open(cls, host: str, port: int) -> Self | None:
        """As the option --metrics-port says: 0 is none."""
        return cls(host, port) if port else None

    def __init__(self, host: str, port: int) -> None:
        """port 0 takes a free one. Raises StartError: port taken, library missing."""
        if importlib.util.find_spec("prometheus_client") is None:
            raise StartError(
                "--metrics-port needs prometheus_client: pip install prometheus_client, "
                "or leave the option out"
            )
        from serving.metrics_text import metrics_text

        pages = {"/metrics": metrics_text, f"/{LIVENESS}": lambda: b"serving\n"}
        try:
            self._server = _Server(host, port, partial(_Handler, pages))
        except OSError as error:
            raise StartError(
                f"cannot listen on {host}:{port}: {error}; choose another --metrics-port"
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        _log.info("metrics on http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, handler: "partial[_Handler]") -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = _IDLE_S

    def __init__(self, pages: dict[str, Callable[[], bytes]], *args: Any) -> None:
        self._pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if page := self._pages.get(path):
            self._answer(200, page())
        elif path == "/readiness":
            ready = READY.read() == {(): True}
            self._answer(200 if ready else 503, b"ready\n" if ready else b"not ready\n")
        else:
            self._answer(404, b"ask for /metrics, /liveness or /readiness\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No line per scrape."""
