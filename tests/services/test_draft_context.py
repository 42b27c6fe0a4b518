"""A draft whose context is shorter than the target's: drafting ends there, the request does not."""

from pathlib import Path

import pytest

from tests.recorded_models import PROMPTS
from tests.services.checkpoints import draft_copy
from tests.services.requests import generate, seat
from tests.services.served import serve_draft, serve_verify

LIMIT = 64


@pytest.mark.parametrize(("prompt_len", "drafted"), [(20, True), (LIMIT - 8, True), (90, False)])
def test_positions_past_the_drafts_limit_are_decoded_plainly(
    tmp_path: Path, prompt_len: int, drafted: bool
) -> None:
    """Positions without an angle or a page of the draft's: a crash there ended every request."""
    short = draft_copy(tmp_path, config={"max_position_embeddings": LIMIT})
    prompt = (PROMPTS[0] * 20)[:prompt_len]
    with serve_draft(short) as draft, serve_verify(short) as verify:
        expected = generate(verify.stub, prompt, 100)[0]
        place = seat(draft.stub, draft.address, positions=prompt_len + 100)
        ids, done = generate(verify.stub, prompt, 100, place)
        beside = generate(verify.stub, PROMPTS[0], 20, seat(draft.stub, draft.address))
    assert ids == expected
    assert (done.speculation.proposed_tokens > 0) == drafted
    assert done.speculation.plain_steps >= (100 - LIMIT) / 8
    assert beside[1].speculation.accepted_tokens > 0, "the stream ended with the session"
