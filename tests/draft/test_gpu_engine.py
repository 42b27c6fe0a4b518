"""Both engines with a draft on a GPU, in float32: the target's own answers, and the drafts used."""

import pytest
import torch

import verify_service.load
from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from draft_service.gpu_executor import GpuExecutor
from draft_service.load import load
from draft_service.update import read_update, swap
from tests.recorded_models import BLOCK, DOMINO_SHIFT, PROMPTS, TARGET
from verify_service.config import VerifyConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_answers_and_updates() -> None:
    """A draft engine that cannot be loaded, or replaced, on a GPU."""
    config = DraftServiceConfig(
        target=TARGET, draft=DOMINO_SHIFT, device="cuda:0", page_size=16, kv_tokens=512,
        max_sessions=4,
    )  # fmt: skip
    loaded = load(config)
    executor = loaded.engine._executor
    assert isinstance(executor, GpuExecutor)
    target = VerifyConfig(target=TARGET, draft=DOMINO_SHIFT, page_size=16, kv_tokens=2048)
    with InProcess(verify_service.load.load(target), loaded) as both:
        accepted = 0
        for prompt in PROMPTS:
            expected = collect(both.submit(prompt, 24))[0]
            answer = both.submit(prompt, 24, mode=spec.MODE_DOMINO, draft_tokens=BLOCK - 1)
            found, done = collect(answer)
            assert found == expected
            accepted += done.speculation.accepted_tokens
        assert accepted > 0, "nothing accepted, nothing tested"
    again = swap(loaded, read_update(loaded, DOMINO_SHIFT))
    assert again.engine._executor is not executor
