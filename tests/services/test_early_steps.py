"""Steps over two services that begin before they are asked for: the same tokens, over a driver made
of this process' memory and executors that do at once what a GPU does later."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from domino_serve.v1 import draft_pb2
from tests.recorded_models import PROMPTS
from tests.services.requests import Call, seat, start
from tests.services.served import Draft, Verify, serve_draft, serve_verify
from tests.transport.fake_driver import COMPILER
from tests.verify.early import EarlyDraft, EarlyTarget, Waking
from verify_service.draft_link import GrpcDraftLink

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the fake driver is compiled"),
    pytest.mark.usefixtures("driver"),
]

TOKENS = 60


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes a GPU long enough for the draft to have answered; here it takes no time."""

    def has_begun(link: GrpcDraftLink) -> bool:
        answer = link._steps.next(30)
        return answer is not None and answer.sequence_number == link._sent and answer.begun

    monkeypatch.setattr(GrpcDraftLink, "_has_begun", has_begun)


@contextmanager
def services(**options: Any) -> Iterator[tuple[Draft, Verify, EarlyTarget, EarlyDraft]]:
    """Both, on executors as GPUs have them."""
    with serve_draft(**options) as draft, serve_verify() as verify:
        target = EarlyTarget(verify.engine._executor, 16)
        drafting = EarlyDraft(draft.loaded.engine._executor)
        verify.engine._executor = target  # type: ignore[assignment]
        draft.loaded.engine._executor = drafting  # type: ignore[assignment]
        yield draft, verify, target, drafting


def expected() -> list[list[int]]:
    with serve_verify() as plain:
        return [start(plain.stub, prompt, TOKENS).finish()[0] for prompt in PROMPTS]


def calls(draft: Draft, verify: Verify) -> list[Call]:
    return [
        start(verify.stub, prompt, TOKENS, seat(draft.stub, draft.address, positions=200))
        for prompt in PROMPTS
    ]


def early_steps(draft: Draft) -> int:
    return int(draft.stub.GetLoads(draft_pb2.DraftServiceGetLoadsRequest()).early_steps)


@pytest.mark.usefixtures("patient")
def test_steps_go_from_one_to_the_other_and_tokens_are_the_plain_ones() -> None:
    """Rows handed over for another prefix, or a pass that runs with another step's proposals."""
    answers = expected()
    with services() as (draft, verify, target, _drafting):
        assert [call.finish()[0] for call in calls(draft, verify)] == answers
        assert early_steps(draft) > 20 and target.num_ahead > 5
        assert verify.engine.drafting.num_faults == 0


@pytest.mark.usefixtures("patient")
def test_a_draft_that_wakes_is_told_the_plain_step_before() -> None:
    """One id of each sequence told as eight: a draft that goes on from other tokens' rows."""
    answers = expected()
    with services() as (draft, verify, target, drafting):
        verify.engine._widths = Waking(5)
        assert [call.finish()[0] for call in calls(draft, verify)] == answers
        steps = [s for s in verify.engine.timeline.steps if not s.prompt_positions]
        drafted = sum(step.positions > step.sequences for step in steps)
        assert drafted > 20 and drafting.steps >= drafted - 1 and target.num_ahead >= drafted - 3
        assert verify.engine.drafting.num_faults == 0


def test_a_draft_that_has_not_said_so_is_asked_as_ever() -> None:
    """A message without rows to a draft that has none."""
    answers = expected()
    with services() as (draft, verify, _target, _drafting):
        assert [call.finish()[0] for call in calls(draft, verify)] == answers
        assert early_steps(draft) > 20
        assert verify.engine.drafting.num_faults == 0


@pytest.mark.usefixtures("patient")
def test_what_began_for_something_else_is_refused_and_costs_speed_only() -> None:
    """Rows that the message left to a step which did not take them."""
    answers = expected()
    with services() as (draft, verify, _target, drafting):
        drafting.spoilt = 3
        assert [call.finish()[0] for call in calls(draft, verify)] == answers
        assert drafting.steps >= drafting.spoilt, "one was spoilt, and ended its sessions"
        assert verify.engine.drafting.num_faults == 0


@pytest.mark.usefixtures("patient")
def test_a_draft_that_dies_with_a_step_begun_costs_speed_only(driver: ctypes.CDLL) -> None:
    """A target's GPU that waits for a dead draft's proposals."""
    (answer, *_) = expected()
    with services() as (draft, verify, _target, _drafting):
        call = start(verify.stub, PROMPTS[0], TOKENS, seat(draft.stub, draft.address))
        call.read(3)
        draft.stop()
        assert call.finish()[0] == answer


def test_none_begins_where_that_is_off() -> None:
    """--no-early-steps, for debugging."""
    answers = expected()
    with services(early_steps=False) as (draft, verify, target, drafting):
        assert [call.finish()[0] for call in calls(draft, verify)] == answers
        assert early_steps(draft) == target.num_ahead == drafting.num_begun == 0


def test_passes_are_told_to_a_draft_that_serves_one_target() -> None:
    """One's pass would hold up the other's steps."""
    with services() as (draft, verify, _target, drafting), serve_verify() as other:
        held = start(other.stub, PROMPTS[1], 300, seat(draft.stub, draft.address))
        call = start(verify.stub, PROMPTS[0], TOKENS, seat(draft.stub, draft.address))
        assert call.finish()[1].speculation.accepted_tokens > 0
        assert drafting.num_begun == 0
        held.stream.cancel()
