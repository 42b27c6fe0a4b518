"""Follows a draft that was updated: fetches its projection, which new requests' rows are made with.

Called by verify_service.draft_links when a handshake was answered with a newer draft. Output never
depends on the projection, only acceptance does.
"""

import logging

import grpc
import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2, draft_pb2_grpc
from domino_serve.v1.verify_pb2 import DraftFingerprint
from serving.channel import channel
from serving.errors import BadRequest, DraftUnavailable
from serving.fingerprint import require_equal
from serving.tensors import from_message, to_message
from verify_service.draft_links import Version
from verify_service.engine import Engine
from verify_service.executor import Executor

FETCH_S = 60.0  # the projection of a large target is a few hundred MB

log = logging.getLogger(__name__)


class DraftUpdates:
    """block: the self-test's taps, K tensors [n, hidden] as the executor takes them."""

    def __init__(self, engine: Engine, executor: Executor, block: list[Tensor]) -> None:
        self._engine, self._executor, self._block = engine, executor, block

    def follow(self, address: str, hello: draft_pb2.HandshakeRequest) -> Version:
        """Adds the projection of the draft at `address`.

        Raises DraftUnavailable when the projection cannot be had or does not fit.
        """
        new, fc, norm = fetch(address, hello, taps=len(self._block), dtype=self._block[0].dtype)

        def install() -> tuple[int, Tensor]:
            number = self._executor.add_projection(fc, norm)
            self._executor.use_projection(number)
            self._engine.scheduler.turns.newest = number
            return number, self._executor.project(self._block)

        try:
            number, rows = self._engine.commands.call(install)
        except (RuntimeError, TimeoutError) as error:  # a device is full, or in a long step
            peer = f"draft service {address}"
            raise DraftUnavailable(peer, f"its projection cannot be used: {error}") from error
        new.self_test_rows.CopyFrom(to_message(rows))
        log.info("took over the projection of draft %s from %s", new.draft.name, address)
        return Version(new, number)


def fetch(
    address: str, hello: draft_pb2.HandshakeRequest, *, taps: int, dtype: torch.dtype
) -> tuple[draft_pb2.HandshakeRequest, Tensor, Tensor]:
    """The handshake request for the new draft, its fc and its norm."""
    peer, hidden = f"draft service {address}", int(hello.target.hidden_size)
    new, norm = draft_pb2.HandshakeRequest(), None
    rows: list[Tensor] = []
    new.CopyFrom(hello)
    try:
        with channel(address) as calls:
            stub = draft_pb2_grpc.DraftServiceStub(calls)
            for message in stub.GetProjection(draft_pb2.GetProjectionRequest(), timeout=FETCH_S):
                part = message.WhichOneof("part")
                if part == "draft":
                    new.draft.CopyFrom(message.draft)
                    _require_same_shape(hello.draft, message.draft)
                elif part == "norm":
                    norm = from_message(message.norm, "norm", hidden, dtype)[0]
                elif part == "fc_rows":
                    rows.append(from_message(message.fc_rows, "fc_rows", taps * hidden, dtype))
                    if sum(map(len, rows)) > hidden:
                        raise DraftUnavailable(peer, f"its projection has over {hidden} rows")
    except (grpc.RpcError, BadRequest) as error:
        raise DraftUnavailable(peer, f"its projection cannot be had: {error}") from None
    fc = torch.cat(rows) if rows else None
    if norm is None or fc is None or len(fc) != hidden:
        raise DraftUnavailable(peer, "its projection is incomplete")
    return new, fc, norm


def _require_same_shape(old: DraftFingerprint, new: DraftFingerprint) -> None:
    """Raises Mismatch where more than the weights differs."""
    shape = DraftFingerprint()
    shape.CopyFrom(new)
    shape.content_hash = old.content_hash
    require_equal("draft", old, shape)
