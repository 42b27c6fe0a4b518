"""The two engine services behind real gRPC in the test's process, with their engines at hand."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import draft_service.load
import verify_service.load
from domino_serve.v1 import draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from draft_service.config import DraftServiceConfig
from draft_service.servicer import DraftServicer
from serving.channel import channel
from serving.compute_thread import ComputeThread
from serving.server import Server
from serving.tensors import DTYPES
from serving.unused_port import unused_port
from tests.patience import DRAFT, VERIFY
from tests.recorded_models import DOMINO_SHIFT, TARGET
from verify_service.config import VerifyConfig
from verify_service.draft_links import DraftLinks
from verify_service.draft_memory import memories_of
from verify_service.engine import Engine
from verify_service.servicer import VerifyServicer


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft service; `stop` ends it at once, as a crash would."""

    address: str
    loaded: draft_service.load.Loaded
    servicer: DraftServicer
    stub: draft_pb2_grpc.DraftServiceStub
    server: Server

    def stop(self) -> None:
        """Returns when every handler has ended."""
        self.server.stop()


@dataclass(frozen=True, slots=True)
class Verify:
    """A verify service; `draining` refuses new requests."""

    address: str
    engine: Engine
    info: verify_pb2.GetTargetResponse
    links: DraftLinks
    servicer: VerifyServicer
    stub: verify_pb2_grpc.VerifyServiceStub
    draining: threading.Event


def slow_while_without(verify: Verify, patch: pytest.MonkeyPatch) -> None:
    """Slow steps as long as a request waits for a draft: it finds one long before its end."""
    step, waiting = verify.engine._step, verify.servicer._recovery

    def slowly() -> None:
        if len(waiting):
            time.sleep(0.1)
        step()

    patch.setattr(verify.engine, "_step", slowly)


@contextmanager
def serve_draft(
    folder: Path = DOMINO_SHIFT,
    *,
    port: int | None = None,
    grace_s: float = 10,
    **options: float | str,
) -> Iterator[Draft]:
    """`options` are DraftServiceConfig's; without `port` one that may be used again after it."""
    config = DraftServiceConfig(
        target=TARGET,
        draft=folder,
        threads=1,
        page_size=16,
        **({"kv_tokens": 8192} | DRAFT | options),  # type: ignore[arg-type]
    )
    server = Server("draft", host="127.0.0.1", port=port or unused_port(), grace_s=grace_s)
    loaded = draft_service.load.load(config)
    servicer = DraftServicer(
        loaded,
        ComputeThread("draft-engine"),
        hidden=loaded.target.hidden_size,
        dtype=DTYPES[config.dtype],
        ttl_s=config.ticket_ttl_s,
        draining=server.draining,
    )
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc)
    server.start()
    with channel(server.address) as calls:
        stub = draft_pb2_grpc.DraftServiceStub(calls)
        draft = Draft(server.address, loaded, servicer, stub, server)
        try:
            yield draft
        finally:
            draft.stop()


@contextmanager
def serve_verify(
    draft: Path | None = DOMINO_SHIFT, target: Path = TARGET, **options: float | str
) -> Iterator[Verify]:
    """`options` are VerifyConfig's. One thread: tiny models spend their time at barriers else. A
    fixed width: statistics are compared, and must not follow the clock."""
    fixed = {"kv_tokens": 8192, "threads": 1, "page_size": 16, "width_policy": "fixed"}
    values = fixed | VERIFY | options
    config = VerifyConfig(target=target, draft=draft, **values)  # type: ignore[arg-type]
    server = Server("verify", host="127.0.0.1", port=0, grace_s=10, max_workers=32)
    loaded = verify_service.load.load(config)
    follow = loaded.updates.follow if loaded.updates else None
    links = DraftLinks(
        loaded.hello, config.draft_connect_s, follow=follow, memories=memories_of(config)
    )
    servicer = VerifyServicer(loaded.engine, loaded.info, loaded.draft, links, server.draining)
    verify_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server.grpc)
    loaded.engine.start()
    server.start()
    with channel(server.address) as calls:
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        try:
            yield Verify(
                address=server.address,
                engine=loaded.engine,
                info=loaded.info,
                links=links,
                servicer=servicer,
                stub=stub,
                draining=server.draining,
            )
        finally:
            server.stop()
            loaded.engine.stop()
            links.close()


def join_readers() -> None:
    """Returns when every draft stream that has ended is known to have ended."""
    for thread in threading.enumerate():
        if thread.name == "draft-link":
            thread.join(60)
