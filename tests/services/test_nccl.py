"""Rows by the nccl plane between services that die, refuse, change or are many: equal tokens."""

import logging
import signal
import threading
from pathlib import Path

import pytest
import torch

from domino_serve.v1 import draft_pb2, verify_pb2_grpc
from serving.channel import channel
from serving.transport import choice
from serving.transport.nccl import MappedNccl
from serving.transport.pair import PairLost
from serving.transport.plane import INLINE, NCCL
from tests.recorded_models import DOMINO_SHIFT, PROMPTS
from tests.services.checkpoints import other_weights
from tests.services.processes import running
from tests.services.requests import generate, seat, start, until_drafted
from tests.services.served import Draft, Verify, serve_draft, serve_verify
from tests.services.test_data_planes import place_at, planes, planes_of
from verify_service import draft_links, draft_recovery

PROMPT, NEW = PROMPTS[0], 60


@pytest.fixture(autouse=True)
def at_once(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that broke are made anew."""
    monkeypatch.setattr(draft_links, "RETRY_S", 0.0)
    monkeypatch.setattr(draft_recovery, "FIRST_PAUSE_S", 0.02)


def drafted(verify: Verify, draft: Draft, prompt: list[int] = PROMPT) -> list[int]:
    ids, done = generate(verify.stub, prompt, NEW, seat(draft.stub, draft.address))
    assert done.speculation.accepted_tokens > 0
    return ids


def test_a_verify_service_that_is_killed_costs_the_others_nothing() -> None:
    """The draft would wait with everybody's steps for rows that never come, or end."""
    with (
        running("draft_service", data_plane="nccl") as draft,
        running("verify_service", data_plane="nccl") as dying,
        serve_verify(data_plane="nccl") as verify,
        channel(dying.address) as calls,
    ):
        expected, _ = generate(verify.stub, PROMPT, NEW)
        call = start(verify_pb2_grpc.VerifyServiceStub(calls), PROMPT, 400, place_at(draft))
        call.read(20)
        assert planes_of(verify_pb2_grpc.VerifyServiceStub(calls)) == [NCCL]
        assert dying.end(signal.SIGKILL) == -signal.SIGKILL
        ids, done = generate(verify.stub, PROMPT, NEW, place_at(draft))
        assert planes(verify) == [NCCL]
        assert (ids, done.speculation.accepted_tokens > 0) == (expected, True)
        call.stream.cancel()
        assert not [line for line in draft.log if "Traceback" in line], "a lost peer is no bug"


def other_nonce(offer: draft_pb2.MemoryOffer, *, device: torch.device) -> MappedNccl:
    mapped = MappedNccl(offer, device)
    mapped.nonce = bytes(32)
    return mapped


def no_way(offer: draft_pb2.MemoryOffer, *, device: torch.device) -> MappedNccl:
    raise PairLost("timed out")


@pytest.mark.parametrize(
    ("theirs", "reason"), [(other_nonce, "another nonce"), (no_way, "nccl: timed out")]
)
def test_a_draft_that_does_not_join_is_sent_rows_inline(
    theirs: object, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A firewall between two hosts must cost speed, and be seen; no thread may wait on for it."""
    monkeypatch.setattr(choice, "MappedNccl", theirs)
    with serve_draft(data_plane="nccl") as draft, serve_verify(data_plane="nccl") as verify:
        plain, _ = generate(verify.stub, PROMPT, NEW)
        assert drafted(verify, draft) == plain
        assert planes(verify) == [INLINE]
        assert not [thread for thread in threading.enumerate() if thread.name == "rows"]
    (warning,) = [r for r in caplog.records if "rows go inline" in r.getMessage()]
    assert warning.levelname == "WARNING"
    assert reason in warning.getMessage()


def test_a_draft_that_is_lost_while_it_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was offered must be taken back, and the next link offered anew."""
    lost: list[Draft] = []

    def losing(offer: draft_pb2.MemoryOffer, *, device: torch.device) -> MappedNccl:
        if not lost:
            lost.append(draft)
            draft.servicer.end_streams()
            raise PairLost("was closed")
        return MappedNccl(offer, device)

    monkeypatch.setattr(choice, "MappedNccl", losing)
    with serve_draft(data_plane="nccl") as draft, serve_verify(data_plane="nccl") as verify:
        expected, _ = generate(verify.stub, PROMPT, NEW)
        answers = until_drafted(verify.stub, PROMPT, NEW, lambda: seat(draft.stub, draft.address))
        assert [ids for ids, _ in answers] == [expected] * len(answers)
        assert (len(lost), planes(verify)) == (1, [NCCL])


def test_a_stream_that_fell_out_of_step_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One message's rows in place of another's would draft badly without any sign."""
    caplog.set_level(logging.INFO)
    received, spoiled = MappedNccl._received, list[int]()

    def late(mapped: MappedNccl, number: int, size: int, until: float) -> torch.Tensor:
        if number == 3 and not spoiled:
            spoiled.append(number)
            number = 4
        return received(mapped, number, size, until)

    monkeypatch.setattr(MappedNccl, "_received", late)
    with serve_draft(data_plane="nccl") as draft, serve_verify(data_plane="nccl") as verify:
        expected, _ = generate(verify.stub, PROMPT, 200)
        ids, _ = generate(verify.stub, PROMPT, 200, seat(draft.stub, draft.address))
        assert (ids, spoiled) == (expected, [3])
        assert drafted(verify, draft) == expected[:NEW]
        assert planes(verify) == [NCCL]
    assert "bytes of message 3, not" in caplog.text


def test_an_updated_draft_is_sent_rows_as_before(tmp_path: Path) -> None:
    """Its streams are new ones: each needs a pair of its own."""
    with serve_draft(data_plane="nccl") as draft, serve_verify(data_plane="nccl") as verify:
        expected = drafted(verify, draft)
        request = draft_pb2.UpdateDraftWeightsRequest(folder=str(other_weights(tmp_path)))
        assert draft.stub.UpdateDraftWeights(request, timeout=60).changed
        again = draft_pb2.UpdateDraftWeightsRequest(folder=str(DOMINO_SHIFT))
        assert draft.stub.UpdateDraftWeights(again, timeout=60).changed
        answers = until_drafted(verify.stub, PROMPT, NEW, lambda: seat(draft.stub, draft.address))
        assert [ids for ids, _ in answers] == [expected] * len(answers)
        assert planes(verify) == [NCCL]


def test_verify_services_at_once() -> None:
    """Rows of one that are taken for another's, or a draft that waits for the wrong one."""
    with (
        serve_draft(data_plane="nccl") as draft,
        serve_verify(data_plane="nccl") as first,
        serve_verify(data_plane="nccl") as second,
        serve_verify(data_plane="nccl") as third,
    ):
        expected = [generate(first.stub, prompt, NEW)[0] for prompt in PROMPTS]
        calls = [
            (case, start(verify.stub, prompt, NEW, seat(draft.stub, draft.address)))
            for case, prompt in enumerate(PROMPTS)
            for verify in (first, second, third)
        ]
        for case, call in calls:
            ids, done = call.finish()
            assert (ids, done.speculation.proposed_tokens > 0) == (expected[case], True)
        assert [planes(verify) for verify in (first, second, third)] == [[NCCL]] * 3
