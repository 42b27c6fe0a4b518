"""The handshake's self-test block: what fingerprints cannot see is refused before any session."""

from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file

import draft_service.load
import verify_service.load
from domino_cli.in_process import InProcess
from domino_serve.v1 import verify_pb2
from draft_service.config import DraftServiceConfig
from serving.checkpoint import Checkpoint
from serving.draft_format import open_draft
from serving.errors import Mismatch, from_rpc_error
from serving.self_test import TOLERANCE, require_same_rows, self_test_block
from serving.target_config import open_target
from tests.recorded_models import DOMINO_NOSHIFT, DOMINO_SHIFT, PROMPTS, TARGET
from tests.services.checkpoints import draft_copy
from tests.services.requests import generate, seat
from tests.services.served import serve_draft, serve_verify
from verify_service.config import VerifyConfig
from verify_service.projection import FeatureProjection


def draft_with(folder: Path, name: str) -> Path:
    """The recorded draft with one tensor of the projection of another training."""
    tensor = load_file(DOMINO_SHIFT / "model.safetensors")[name]
    other = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3))
    return draft_copy(folder, tensors={name: other.to(tensor.dtype)})


def refusal(served: Path, verified: Path) -> Mismatch:
    with serve_draft(served) as draft, serve_verify(verified) as verify:
        with pytest.raises(grpc.RpcError) as caught:
            request = verify_pb2.ConnectDraftRequest(address=draft.address)
            verify.stub.ConnectDraft(request, timeout=60)
        place = seat(draft.stub, draft.address)
        assert generate(verify.stub, PROMPTS[0], 5, place)[0], "requests go on"
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    error = from_rpc_error(caught.value)
    assert isinstance(error, Mismatch)
    return error


@pytest.mark.parametrize("name", ["fc.weight", "hidden_norm.weight"])
def test_other_weights_under_the_same_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """File hashes are cached by size and time: a file replaced in place may keep its old one."""
    monkeypatch.setattr(Checkpoint, "content_hash", lambda checkpoint: "the same")
    error = refusal(DOMINO_SHIFT, draft_with(tmp_path, name))
    assert error.field == "self_test_rows"
    assert "away; start both services with the same --target, --draft" in str(error)


def test_an_epsilon_alone_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm with another epsilon drafts from slightly wrong rows for ever."""
    monkeypatch.setattr(Checkpoint, "content_hash", lambda checkpoint: "the same")
    other = draft_copy(tmp_path, config={"rms_norm_eps": 0.1})
    assert refusal(DOMINO_SHIFT, other).field == "self_test_rows"


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rounding_is_no_mismatch(dtype: torch.dtype) -> None:
    """A tolerance below a dtype's rounding refuses every pair of that dtype."""
    checkpoint, config = open_target(TARGET)
    draft, weights = open_draft(DOMINO_SHIFT, config)[::-1]
    block = self_test_block(checkpoint, config, len(draft.target_layer_ids))
    device = torch.device("cpu")
    exact = FeatureProjection(draft, weights, dtype=torch.float32, device=device)(block)
    rounded = FeatureProjection(draft, weights, dtype=dtype, device=device)
    rows = rounded([tap.to(dtype) for tap in block])
    require_same_rows(exact, rows)
    assert float((exact - rows.float()).norm() / exact.norm()) < TOLERANCE[dtype] / 4
    with pytest.raises(Mismatch):
        require_same_rows(exact, rows.roll(1, 0))
    with pytest.raises(Mismatch):
        require_same_rows(exact, torch.full_like(rows, torch.nan))
    with pytest.raises(Mismatch):
        require_same_rows(exact, rows[:4])


def test_engines_in_one_process_are_compared_too() -> None:
    """The in-process composition has no gRPC handshake that would notice another draft."""
    verify = verify_service.load.load(VerifyConfig(target=TARGET, draft=DOMINO_SHIFT, threads=1))
    config = DraftServiceConfig(target=TARGET, draft=DOMINO_NOSHIFT, threads=1)
    with pytest.raises(Mismatch, match=r"draft\.content_hash"):
        InProcess(verify, draft_service.load.load(config))
