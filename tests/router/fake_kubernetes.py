"""The part of the Kubernetes API that endpoint watching uses, over HTTP: list and watch."""

import json
import queue
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

END = b""  # of the watch


class FakeService:
    """`answers` are the lists to come, as bodies or HTTP statuses; the last is given again.

    emit() sends an event to every watch, one that begins later too; `asked` has each request's
    path and query.
    """

    def __init__(self) -> None:
        self.answers: list[bytes | int] = []
        self.asked: queue.SimpleQueue[tuple[str, dict[str, list[str]]]] = queue.SimpleQueue()
        self._lines: list[bytes] = []
        self._ended = self._start = 0  # behind the last end; where a watch after the last list is
        self._changed = threading.Condition()

    def emit(self, event: str, item: Any) -> None:
        self._add(json.dumps({"type": event, "object": item}).encode() + b"\n")

    def emit_line(self, line: bytes) -> None:
        """Something that ends the watches there are: END, or what cannot be read."""
        self._add(line, ends=True)

    def next_answer(self) -> bytes | int:
        with self._changed:
            self._start = self._ended
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def events(self) -> Iterator[bytes]:
        with self._changed:
            at = self._start
        while True:
            with self._changed:
                while len(self._lines) == at:
                    self._changed.wait()
                line = self._lines[at]
            if line == END:
                return
            yield line
            at += 1

    def _add(self, line: bytes, *, ends: bool = False) -> None:
        with self._changed:
            self._lines.append(line)
            if ends:
                self._ended = len(self._lines)
            self._changed.notify_all()


class FakeKubernetes(dict[str, FakeService]):
    """Services by name; one that nobody set up yet has no answer. tokens: those it was sent."""

    port = 0

    def __init__(self) -> None:
        self.tokens: set[str | None] = set()

    def __missing__(self, name: str) -> FakeService:
        return self.setdefault(name, FakeService())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeKubernetes

    def do_GET(self) -> None:
        self.api.tokens.add(self.headers["Authorization"])
        split = urlsplit(self.path)
        query = parse_qs(split.query)
        service = self.api[query["labelSelector"][0].removeprefix("kubernetes.io/service-name=")]
        if query.get("watch") == ["true"]:
            self._watch(service.events(), lambda: service.asked.put((split.path, query)))
        else:
            service.asked.put((split.path, query))
            self._list(service.next_answer())

    def _list(self, answer: bytes | int) -> None:
        self.send_response(answer if isinstance(answer, int) else 200)
        body = b"" if isinstance(answer, int) else answer
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, events: Iterator[bytes], began: Callable[[], None]) -> None:
        began()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):  # the watcher has gone
            for line in events:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@contextmanager
def fake_kubernetes(
    folder: Path, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[FakeKubernetes, Path]]:
    """A running API and the kubeconfig that leads to it, unless it speaks TLS."""
    api = FakeKubernetes()
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    api.port = server.server_port
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api, _kubeconfig(folder, f"http://127.0.0.1:{server.server_port}")
    finally:
        for service in api.values():
            service.emit_line(END)
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(folder: Path, url: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "t"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def listing(*slices: dict[str, Any]) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "7"}, "items": slices}).encode()


def endpoint(host: str, *, zone: str = "", node: str = "", **conditions: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": [host], "conditions": conditions}
    return found | ({"zone": zone} if zone else {}) | ({"nodeName": node} if node else {})


def endpoint_slice(
    name: str, *entries: Any, family: str = "IPv4", port: int = 50052
) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "addressType": family,
        "ports": [{"name": "grpc", "port": port, "protocol": "TCP"}],
        "endpoints": list(entries),
    }
