"""The part of the Kubernetes API that endpoint watching uses, over HTTP: list and watch."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

END = b""  # of the watch


class FakeKubernetes:
    """`answers` are the lists to come, as bodies or HTTP statuses; the last is given again.

    emit() sends one line to the running watch; `asked` has each request's path and query.
    """

    def __init__(self) -> None:
        self.answers: list[bytes | int] = []
        self.asked: queue.SimpleQueue[tuple[str, dict[str, list[str]]]] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def emit(self, event: str, item: Any) -> None:
        self._events.put(json.dumps({"type": event, "object": item}).encode() + b"\n")

    def emit_line(self, line: bytes) -> None:
        """END ends the watch."""
        self._events.put(line)

    def next_answer(self) -> bytes | int:
        with self._lock:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def events(self) -> Iterator[bytes]:
        return iter(self._events.get, END)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeKubernetes

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        query = parse_qs(split.query)
        self.api.asked.put((split.path, query))
        if query.get("watch") == ["true"]:
            self._watch()
        else:
            self._list(self.api.next_answer())

    def _list(self, answer: bytes | int) -> None:
        self.send_response(answer if isinstance(answer, int) else 200)
        body = b"" if isinstance(answer, int) else answer
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in self.api.events():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@contextmanager
def fake_kubernetes(folder: Path) -> Iterator[tuple[FakeKubernetes, Path]]:
    """A running API and the kubeconfig that leads to it."""
    api = FakeKubernetes()
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api, _kubeconfig(folder, f"http://127.0.0.1:{server.server_port}")
    finally:
        api.emit_line(END)
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


def endpoint_slice(name: str, *entries: Any, family: str = "IPv4") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "addressType": family,
        "ports": [{"name": "grpc", "port": 50052, "protocol": "TCP"}],
        "endpoints": list(entries),
    }
