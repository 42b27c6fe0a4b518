"""Rows by NCCL on one GPU, between services that take each other for those of another host."""

import signal

import pytest
import torch

from domino_serve.v1 import verify_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.transport.plane import INLINE, NCCL
from tests.recorded_models import PROMPTS
from tests.services.processes import running
from tests.services.requests import generate, start, until_drafted
from tests.services.test_data_planes import place_at

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPT, NEW = PROMPTS[0], 60
PLANE = {"data_plane": "nccl", "device": "cuda", "width": 8}


@pytest.fixture(autouse=True)
def over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")


def plane_of(stub: verify_pb2_grpc.VerifyServiceStub) -> list[int]:
    loads = stub.GetLoads(verify_pb2.GetLoadsRequest())
    return [link.data_plane for link in loads.draft_links]


def test_rows_come_from_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are lost or late on the way cost acceptance; a draft that is killed while NCCL's
    kernels wait for it must leave no GPU waiting, and its successor gets a pair of its own."""
    options = {key: value for key, value in PLANE.items() if key != "width"}
    monkeypatch.setenv("NCCL_HOSTID", "draft")
    with running("draft_service", **options) as draft:
        monkeypatch.setenv("NCCL_HOSTID", "verify")
        with running("verify_service", **PLANE) as verify, channel(verify.address) as calls:
            stub = verify_pb2_grpc.VerifyServiceStub(calls)
            plain, _ = generate(stub, PROMPT, 400)
            for prompt in PROMPTS:
                expected, _ = generate(stub, prompt, NEW)
                ids, done = generate(stub, prompt, NEW, place_at(draft))
                assert (ids, done.speculation.proposed_tokens > 0) == (expected, True)
                assert plane_of(stub) == [NCCL], verify.log
            _, done = generate(stub, PROMPT, NEW, place_at(draft))
            assert done.speculation.accepted_tokens > 0
            call = start(stub, PROMPT, 400, place_at(draft))
            call.read(20)
            assert draft.end(signal.SIGKILL) == -signal.SIGKILL
            ids, _ = call.finish()
            assert ids == plain
            assert generate(stub, PROMPT, NEW)[0] == plain[:NEW]
            monkeypatch.setenv("NCCL_HOSTID", "draft")
            with running("draft_service", **options) as again:
                answers = until_drafted(stub, PROMPT, NEW, lambda: place_at(again))
                assert [ids for ids, _ in answers] == [plain[:NEW]] * len(answers)
                assert NCCL in plane_of(stub), verify.log
            assert verify.end(signal.SIGTERM) == 0, verify.log


def test_what_nccl_refuses_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of one GPU on one host: refused by NCCL, which must end neither service."""
    monkeypatch.setenv("NCCL_HOSTID", "one")
    with (
        running("draft_service", **{k: v for k, v in PLANE.items() if k != "width"}) as draft,
        running("verify_service", **PLANE) as verify,
        channel(verify.address) as calls,
    ):
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        plain, _ = generate(stub, PROMPT, NEW)
        ids, done = generate(stub, PROMPT, NEW, place_at(draft))
        assert (ids, done.speculation.accepted_tokens > 0) == (plain, True)
        assert plane_of(stub) == [INLINE]
        verify.await_line("rows go inline")
        print(*[line for line in verify.log if "inline" in line], sep="\n")
