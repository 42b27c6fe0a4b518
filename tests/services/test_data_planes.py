"""Rows by every data plane: the same tokens and the same proposals, whatever is lost on the way."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.tensor_pb2 import DataPlane
from serving.channel import channel
from serving.transport import choice, shm
from serving.transport.plane import INLINE, NAMES, NCCL, SHM, MakeMemory, Plane
from serving.transport.segment import FOLDER, PREFIX
from serving.transport.shm import OwnShm
from tests.patience import NEVER_S
from tests.recorded_models import HIDDEN, PROMPTS
from tests.services import served
from tests.services.processes import Process, running
from tests.services.requests import Call, generate, seat, start, until_drafted
from tests.services.served import Draft, Verify, serve_draft, serve_verify
from tests.standing_still import standing_still
from verify_service import draft_recovery
from verify_service.metrics import ROWS

MODES = (spec.MODE_DOMINO, spec.MODE_DFLASH, spec.MODE_DOMINO)
Answers = list[tuple[list[int], spec.SpeculationStats]]


def rows_sent() -> dict[str, float]:
    return {plane: count for (plane,), count in ROWS.read().items()}


@contextmanager
def counted_rows() -> Iterator[dict[str, float]]:
    """Rows that went each way, once the block has ended."""
    before = rows_sent()
    sent: dict[str, float] = {}
    yield sent
    sent |= {plane: count - before.get(plane, 0) for plane, count in rows_sent().items()}


def planes(verify: Verify) -> list[DataPlane.ValueType]:
    return planes_of(verify.stub)


def planes_of(stub: verify_pb2_grpc.VerifyServiceStub) -> list[DataPlane.ValueType]:
    """Of the links, as GetLoads tells."""
    return [link.data_plane for link in stub.GetLoads(verify_pb2.GetLoadsRequest()).draft_links]


def batch(draft: Draft, verify: Verify) -> Answers:
    """Staggered requests of both modes, one of them with a long prompt."""

    def begin(case: int) -> Call:
        prompt = PROMPTS[case] * (9 if case == 1 else 1)
        place = seat(draft.stub, draft.address, mode=MODES[case])
        return start(verify.stub, prompt, 30 + 7 * case, place)

    calls = [begin(case) for case in range(len(MODES))]
    return [(ids, done.speculation) for ids, done in (call.finish() for call in calls)]


@pytest.mark.usefixtures("patient")
def test_every_plane_gives_the_same_tokens_and_proposals() -> None:
    """Rows that were cut, swapped, or written over while they are read cost acceptance, or more."""
    expected: Answers | None = None
    for name, plane in (("inline", INLINE), ("shm", SHM), ("nccl", NCCL), ("auto", SHM)):
        with (
            counted_rows() as sent,
            serve_draft(data_plane="nccl" if plane == NCCL else "auto") as draft,
            serve_verify(prefill_tokens=32, data_plane=name) as verify,
        ):
            found = batch(draft, verify)
            assert planes(verify) == [plane]
        assert {way for way, count in sent.items() if count} == {NAMES[plane]}
        assert sum(stats.accepted_tokens for _, stats in found) > 0, "nothing tested"
        if expected is None:
            expected = found
            with serve_verify() as plain:
                for case, (ids, _) in enumerate(found):
                    prompt = PROMPTS[case] * (9 if case == 1 else 1)
                    assert generate(plain.stub, prompt, 30 + 7 * case)[0] == ids
        assert [ids for ids, _ in found] == [ids for ids, _ in expected]
        # Batches differ with the clock, and with them who is drafted for first; not by much.
        rates = [rate(found), rate(expected)]
        assert abs(rates[0] - rates[1]) < 0.1


def rate(answers: Answers) -> float:
    accepted = sum(stats.accepted_tokens for _, stats in answers)
    return accepted / sum(stats.proposed_tokens for _, stats in answers)


def test_rows_that_do_not_fit_a_slot_go_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt's rows may be many; they must neither be cut nor end the stream."""
    small: dict[Plane, MakeMemory] = {SHM: partial(OwnShm, slot_bytes=16 * HIDDEN * 4)}
    with serve_draft() as draft, serve_verify(prefill_tokens=32, data_plane="inline") as verify:
        prompt = PROMPTS[0] + generate(verify.stub, PROMPTS[0], 40)[0]
        plain, _ = generate(verify.stub, prompt, 40)
        ids, inline = generate(verify.stub, prompt, 40, seat(draft.stub, draft.address))
        assert ids == plain
    monkeypatch.setattr(served, "memories_of", lambda config: small)
    with counted_rows() as sent, serve_draft() as draft, serve_verify(prefill_tokens=32) as verify:
        ids, done = generate(verify.stub, prompt, 40, seat(draft.stub, draft.address))
        assert planes(verify) == [SHM]
    assert ids == plain
    assert done.speculation == inline.speculation
    assert done.speculation.accepted_tokens > 0
    assert (sent["inline"] >= 32, sent["shm"] > 0) == (True, True)


class AnotherHosts(shm.MappedShm):
    """Memory of the right name and size that is not the verify service's."""

    def __init__(self, offer: draft_pb2.MemoryOffer, device: torch.device) -> None:
        super().__init__(offer, device)
        self.nonce = bytes(32)


def no_segment(offer: draft_pb2.MemoryOffer, device: torch.device) -> shm.MappedShm:
    raise FileNotFoundError(2, "No such file or directory")


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [(AnotherHosts, "another nonce"), (no_segment, "No such file or directory")],
)
def test_a_draft_on_another_host_is_sent_rows_inline(
    theirs: Callable[[draft_pb2.MemoryOffer], shm.MappedShm],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Names prove nothing: rows would lie in memory that the draft never sees."""
    monkeypatch.setattr(choice, "MappedShm", theirs)
    with serve_draft() as draft, serve_verify() as verify:
        plain, _ = generate(verify.stub, PROMPTS[0], 40)
        ids, done = generate(verify.stub, PROMPTS[0], 40, seat(draft.stub, draft.address))
        assert planes(verify) == [INLINE]
    assert ids == plain
    assert done.speculation.accepted_tokens > 0
    (warning,) = [r for r in caplog.records if "rows go inline" in r.getMessage()]
    assert warning.levelname == "WARNING"
    assert reason in warning.getMessage()


def test_a_draft_that_takes_no_memory_is_sent_rows_inline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator's choice on one side must not stop the other side."""
    with serve_draft(data_plane="inline") as draft, serve_verify(data_plane="shm") as verify:
        _, done = generate(verify.stub, PROMPTS[0], 40, seat(draft.stub, draft.address))
        assert planes(verify) == [INLINE]
    assert done.speculation.accepted_tokens > 0
    assert "rows go inline; shm: the draft service does not take it" in caplog.text


def test_a_full_dev_shm_leaves_rows_inline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Containers have 64 MiB there; no request may fail for want of it."""

    def full() -> OwnShm:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(served, "memories_of", lambda config: {SHM: full})
    with serve_draft() as draft, serve_verify() as verify:
        _, done = generate(verify.stub, PROMPTS[0], 40, seat(draft.stub, draft.address))
    assert done.speculation.accepted_tokens > 0
    assert "rows go inline; shm: cannot be made: [Errno 28] No space left" in caplog.text


def test_memory_that_cannot_be_offered_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Prevents memory that stays with the service for good at each try to reach a draft."""
    names: list[str] = []

    class NoHandle(OwnShm):
        def offer(self) -> draft_pb2.MemoryOffer:
            names.append(super().offer().shm.name)
            raise RuntimeError("no handle")

    monkeypatch.setattr(served, "memories_of", lambda config: {SHM: NoHandle})
    with serve_draft() as draft, serve_verify() as verify:
        _, done = generate(verify.stub, PROMPTS[0], 40, seat(draft.stub, draft.address))
        assert names and not any((FOLDER / name).exists() for name in names)
    assert done.speculation.accepted_tokens > 0
    assert "rows go inline; shm: cannot be made: no handle" in caplog.text


def place_at(process: Process) -> verify_pb2.DraftSeat:
    with channel(process.address) as calls:
        return seat(draft_pb2_grpc.DraftServiceStub(calls), process.address)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("plane", [SHM, NCCL])
def test_a_draft_killed_with_rows_in_its_slot(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot must not be waited for, nor its memory kept; its successor gets its own."""
    name = NAMES[plane]
    monkeypatch.setattr(draft_recovery, "FIRST_PAUSE_S", 0.02)
    others = segments(os.getpid())
    with (
        serve_verify(data_plane=name) as verify,
        running("draft_service", data_plane=name) as first,
    ):
        expected, _ = generate(verify.stub, PROMPTS[0], 400)
        with standing_still(verify.engine) as until_it_stands:
            call = start(verify.stub, PROMPTS[0], 400, place_at(first))
            until_it_stands()
            made = segments(os.getpid()) - others
            first.send(signal.SIGSTOP)
            verify.engine.drafting._step_s = 0.01
        call.read(20)  # plain, while the draft owes an answer for the rows in the slot
        verify.engine.drafting._step_s = NEVER_S
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        ids, done = call.finish()
        assert ids == expected
        assert done.speculation.plain_steps > 10
        with running("draft_service", port=first.port, data_plane=name) as second:
            place = partial(place_at, second)
            until_drafted(verify.stub, PROMPTS[0], 60, place)  # the last one maybe from midway on
            ids, done = generate(verify.stub, PROMPTS[0], 60, place())
            assert planes(verify) == [plane]
            made |= segments(os.getpid()) - others
        assert (ids, done.speculation.plain_steps < 10) == (expected[:60], True)
    assert len(made) == (2 if plane == SHM else 0)
    assert not [name for name in made if (FOLDER / name).exists()]


def test_killed_services_leave_no_memory_behind() -> None:
    """kill -9 runs no clean-up; what stays in /dev/shm stays until the machine restarts."""
    with (
        running("draft_service") as draft,
        running("verify_service") as verify,
        channel(verify.address) as calls,
    ):
        stub = verify_pb2_grpc.VerifyServiceStub(calls)
        call = start(stub, PROMPTS[0], 300, place_at(draft))
        link = stub.GetLoads(verify_pb2.GetLoadsRequest()).draft_links[0]
        assert link.data_plane == SHM
        (name,) = segments(verify.service.pid) & segments(draft.service.pid)
        assert not (FOLDER / name).exists(), "not even while it is in use"
        for process in (verify, draft):
            assert process.end(signal.SIGKILL) == -signal.SIGKILL
        call.stream.cancel()
    assert not (FOLDER / name).exists()


def segments(pid: int) -> set[str]:
    """Names that a process' shared memory had; other services of this machine have theirs."""
    return set(re.findall(f"{PREFIX}[0-9a-f]+", Path(f"/proc/{pid}/maps").read_text()))
