"""The verify service in this process behind real gRPC, with its engine at hand."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.channel import SERVER_OPTIONS, channel
from verify_service.config import VerifyConfig
from verify_service.draft_links import DraftLinks
from verify_service.engine import Engine
from verify_service.load import load
from verify_service.servicer import VerifyServicer


@dataclass(frozen=True)
class Served:
    """A running service; `draining` refuses new requests."""

    address: str
    stub: "verify_pb2_grpc.VerifyServiceStub"
    engine: Engine
    info: verify_pb2.GetTargetResponse
    draining: threading.Event


@contextmanager
def served_engine(
    target: Path, draft: Path | None = None, *, page_size: int = 16, **options: int
) -> Iterator[Served]:
    """One thread: tiny models spend their time at thread barriers otherwise."""
    values = {"kv_tokens": 2048, "threads": 1, "prefill_tokens": 16} | options
    config = VerifyConfig(target=target, draft=draft, page_size=page_size, **values)  # type: ignore[arg-type]
    loaded, draining = load(config), threading.Event()
    links = DraftLinks(loaded.info.target, loaded.info.draft, 5.0)
    servicer = VerifyServicer(loaded.engine, loaded.info, loaded.draft, links, draining)
    server = grpc.server(ThreadPoolExecutor(32), options=SERVER_OPTIONS)
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    loaded.engine.start()
    server.start()
    try:
        with channel(address) as calls:
            stub = verify_pb2_grpc.VerifyServiceStub(calls)
            yield Served(address, stub, loaded.engine, loaded.info, draining)
    finally:
        loaded.engine.stop()
        server.stop(None).wait()
        links.close()
