"""Rows by NCCL between two GPUs, or on one where services take each other for other hosts'."""

import signal

import pytest
import torch

from domino_serve.v1 import verify_pb2_grpc
from serving.channel import channel
from serving.transport.plane import INLINE, NCCL
from tests.recorded_models import PROMPTS
from tests.services.processes import running
from tests.services.requests import generate, start, until_drafted
from tests.services.test_data_planes import place_at, planes_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPT, NEW = PROMPTS[0], 60
VERIFY = {"data_plane": "nccl", "device": "cuda:0", "width": 8}
DRAFT = {"data_plane": "nccl"}
ONE = pytest.param("cuda:0", id="one-gpu-two-hosts")
TWO = pytest.param(
    "cuda:1",
    marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
    id="two-gpus-one-host",
)


@pytest.fixture(autouse=True)
def over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")


@pytest.mark.parametrize("device", [ONE, TWO])
def test_rows_come_from_another_gpu(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Rows that are lost or late on the way cost acceptance; a draft that is killed while NCCL's
    kernels wait for it must leave no GPU waiting, and its successor gets a pair of its own."""

    def host(name: str) -> None:
        if device == VERIFY["device"]:
            monkeypatch.setenv("NCCL_HOSTID", name)

    own = DRAFT | {"device": device}
    host("draft")
    with running("draft_service", **own) as draft:
        host("verify")
        with running("verify_service", **VERIFY) as verify, channel(verify.address) as calls:
            stub = verify_pb2_grpc.VerifyServiceStub(calls)
            plain, _ = generate(stub, PROMPT, 400)
            for prompt in PROMPTS:
                expected, _ = generate(stub, prompt, NEW)
                ids, done = generate(stub, prompt, NEW, place_at(draft))
                assert (ids, done.speculation.proposed_tokens > 0) == (expected, True)
                assert planes_of(stub) == [NCCL], verify.log
            _, done = generate(stub, PROMPT, NEW, place_at(draft))
            assert done.speculation.accepted_tokens > 0
            call = start(stub, PROMPT, 400, place_at(draft))
            call.read(20)
            assert draft.end(signal.SIGKILL) == -signal.SIGKILL
            ids, _ = call.finish()
            assert ids == plain
            assert generate(stub, PROMPT, NEW)[0] == plain[:NEW]
            host("draft")
            with running("draft_service", **own) as again:
                answers = until_drafted(stub, PROMPT, NEW, lambda: place_at(again))
                assert [ids for ids, _ in answers] == [plain[:NEW]] * len(answers)
                assert NCCL in planes_of(stub), verify.log
            assert verify.end(signal.SIGTERM) == 0, verify.log


def test_what_nccl_refuses_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of one GPU on one host: refused by NCCL, which must end neither service."""
    monkeypatch.setenv("NCCL_HOSTID", "one")
    with (
        running("draft_service", **DRAFT, device=VERIFY["device"]) as draft,
        running("verify_service", **VERIFY) as verify,
        channel(verify.address) as calls,
    ):
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        plain, _ = generate(stub, PROMPT, NEW)
        ids, done = generate(stub, PROMPT, NEW, place_at(draft))
        assert (ids, done.speculation.accepted_tokens > 0) == (plain, True)
        assert planes_of(stub) == [INLINE]
        verify.await_line("rows go inline")
