"""What a step is refused for: one reason, the field and both values, before any KV is touched."""

import pytest
import torch

from domino_serve.v1 import draft_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.checks import Refusal, check_step, usable_rows
from draft_service.seats import Session
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.target_config import open_target
from tests.recorded_models import BLOCK, DOMINO_NOSHIFT, DOMINO_SHIFT, TARGET, VOCAB

LAST_STEP, KV_LEN, LIMIT = 4, 20, 40


def config(shift: bool = True) -> DraftConfig:
    folder = DOMINO_SHIFT if shift else DOMINO_NOSHIFT
    return open_draft(folder, open_target(TARGET)[1])[1]


def session() -> Session:
    return Session(
        mode=spec.MODE_DOMINO,
        pages=[],
        max_positions=LIMIT,
        step=LAST_STEP,
        kv_len=KV_LEN,
    )


def step(**changes: int) -> pb.SessionStep:
    """A good step that uses the session's last position, with changes."""
    fields = {
        "step": LAST_STEP + 1,
        "rows_start": KV_LEN,
        "num_rows": LIMIT - KV_LEN - BLOCK,
        "current": VOCAB - 1,
        "draft_tokens": BLOCK,
    }
    return pb.SessionStep(**(fields | changes))


def refusal(wrong: pb.SessionStep, *, shift: bool = True) -> tuple[str, str, int, int]:
    with pytest.raises(Refusal) as caught:
        check_step(session(), wrong, config(shift))
    error = caught.value.message()
    reason = pb.SessionErrorReason.Name(error.reason).removeprefix("SESSION_ERROR_REASON_")
    return reason, error.field, error.expected, error.actual


def test_a_step_that_uses_every_limit_is_taken() -> None:
    """Limits off by one cost the last tokens of every full context."""
    known = session()
    assert check_step(known, step(), config()) is known
    append_only = step(num_rows=LIMIT - KV_LEN)
    append_only.ClearField("current")
    assert check_step(known, append_only, config()) is known


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"step": LAST_STEP - 1}, ("STALE", "step", LAST_STEP, LAST_STEP - 1)),
        ({"rows_start": KV_LEN + 1}, ("CONTEXT_GAP", "rows_start", KV_LEN, KV_LEN + 1)),
        ({"rows_start": KV_LEN - 1}, ("CONTEXT_GAP", "rows_start", KV_LEN, KV_LEN - 1)),
        ({"num_rows": -1}, ("INVALID", "num_rows", 0, -1)),
        ({"current": VOCAB}, ("INVALID", "current", VOCAB - 1, VOCAB)),
        ({"current": -1}, ("INVALID", "current", VOCAB - 1, -1)),
        ({"draft_tokens": 0}, ("INVALID", "draft_tokens", BLOCK, 0)),
        ({"draft_tokens": BLOCK + 1}, ("INVALID", "draft_tokens", BLOCK, BLOCK + 1)),
        ({"num_rows": 13}, ("CAPACITY", "positions", LIMIT, LIMIT + 1)),
    ],
)
def test_each_refusal_names_field_and_values(
    changes: dict[str, int], expected: tuple[str, str, int, int]
) -> None:
    """A refusal that does not say what was expected cannot be told from a bug."""
    assert refusal(step(**changes)) == expected


def test_unshifted_labels_draft_one_token_less() -> None:
    """Without shifted labels the block's first row predicts the current token itself."""
    assert refusal(step(draft_tokens=BLOCK), shift=False) == (
        "INVALID",
        "draft_tokens",
        BLOCK - 1,
        BLOCK,
    )


def test_rows_alone_may_not_pass_the_end() -> None:
    """Appending beyond the session's pages would write into a neighbour's."""
    append_only = step(num_rows=LIMIT - KV_LEN + 1)
    append_only.ClearField("current")
    assert refusal(append_only) == ("CAPACITY", "positions", LIMIT, LIMIT + 1)


def test_draft_tokens_are_required_with_current() -> None:
    """A missing count must not be read as some default."""
    wrong = step()
    wrong.ClearField("draft_tokens")
    assert refusal(wrong)[:2] == ("INVALID", "draft_tokens")


def test_an_unknown_session_is_told() -> None:
    """After a reconnect the verify service learns that it has to open the session again."""
    with pytest.raises(Refusal) as caught:
        check_step(None, step(), config())
    assert caught.value.message().reason == pb.SESSION_ERROR_REASON_UNKNOWN_SESSION


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_numbers_are_usable(dtype: torch.dtype) -> None:
    """A sum stands for the values: infinities that cancel, and numbers whose sum is none."""
    rows = torch.zeros(6, 64, dtype=dtype)
    assert usable_rows(rows) == [True] * 6
    rows[1] = torch.finfo(dtype).max
    assert usable_rows(rows) == [True] * 6
    rows[2, 5] = torch.nan
    rows[3, 7], rows[3, 8] = torch.inf, -torch.inf
    rows[4, 63] = torch.inf
    assert usable_rows(rows) == [True, True, False, False, False, True]
    assert usable_rows(rows[2:5]) == [False] * 3
    assert usable_rows(rows[:0]) == []


def test_numbers_beyond_the_errors_fields_are_told_as_the_largest() -> None:
    """Found by fuzzing: an int64 that cannot hold a uint64 ended the stream with its sessions."""
    open_session = session()
    open_session.step = 2**64 - 1
    with pytest.raises(Refusal) as caught:
        check_step(open_session, step(), config())
    error = caught.value.message()
    assert (error.field, error.expected, error.actual) == ("step", 2**63 - 1, LAST_STEP + 1)
