"""The projection of an updated draft, as verify fetches it."""

from collections.abc import Iterator

import grpc
import pytest
import torch

from domino_serve.v1 import draft_pb2
from serving.errors import DraftUnavailable
from serving.tensors import to_message
from tests.router.fake_services import FakeDraft, served
from verify_service.draft_update import fetch

HIDDEN = 4
HELLO = draft_pb2.HandshakeRequest()
HELLO.target.hidden_size = HIDDEN


class Endless(FakeDraft):
    """Never stops sending its projection."""

    def GetProjection(
        self, request: draft_pb2.GetProjectionRequest, context: grpc.ServicerContext
    ) -> Iterator[draft_pb2.GetProjectionResponse]:
        rows = to_message(torch.ones(3, 2 * HIDDEN))
        while context.is_active():
            yield draft_pb2.GetProjectionResponse(fc_rows=rows)


def test_more_rows_than_the_target_has_end_the_fetch() -> None:
    """Prevents a draft at fault from filling the verify service's memory for a minute."""
    with served(Endless()) as address, pytest.raises(DraftUnavailable, match="over 4 rows"):
        fetch(address, HELLO, taps=2, dtype=torch.float32)
