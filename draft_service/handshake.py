"""What a verify service says of itself in, what the draft says of itself out; or why they part."""

import torch

from domino_serve.v1 import draft_pb2
from draft_service.load import Loaded
from serving.contract import CONTRACT_VERSION
from serving.errors import ContractMismatch
from serving.fingerprint import require_equal
from serving.self_test import require_same_rows
from serving.tensors import from_message


def answer(
    loaded: Loaded, request: draft_pb2.HandshakeRequest, hidden: int, dtype: torch.dtype
) -> draft_pb2.HandshakeResponse:
    """Raises ContractMismatch, or Mismatch naming the first field that differs."""
    if request.contract_version != CONTRACT_VERSION:
        raise ContractMismatch(CONTRACT_VERSION, request.contract_version)
    require_equal("target", loaded.target, request.target)
    hello = draft_pb2.HandshakeResponse()
    hello.CopyFrom(loaded.hello)
    hello.data_planes.extend(plane for plane in request.data_planes if plane in loaded.kinds)
    if request.follows_updates and request.draft.content_hash in loaded.served:
        return hello  # it takes over the projection and says hello again
    require_equal("draft", loaded.hello.draft, request.draft)
    rows = from_message(request.self_test_rows, "self_test_rows", hidden, dtype)
    require_same_rows(loaded.self_test, rows)
    return hello
