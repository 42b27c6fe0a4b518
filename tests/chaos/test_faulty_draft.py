"""A draft that breaks the contract, in every way we know: output stays the target's own."""

from collections.abc import Iterator

import pytest

from domino_serve.v1 import draft_pb2, verify_pb2
from tests.chaos.faults import FAULTS
from tests.chaos.faulty_draft import faulty
from tests.patience import NEVER_S
from tests.recorded_models import PROMPTS
from tests.services.requests import generate, seat, start
from tests.services.served import Draft, Verify, serve_draft, serve_verify

LENGTH = 60
Services = tuple[Draft, Verify]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    """Little time for drafts, but all of it for the one that is no fault's."""
    with serve_draft() as draft, serve_verify(draft_step_s=0.05, draft_timeout_s=2) as verify:
        link = verify.links.get(draft.address)
        with pytest.MonkeyPatch.context() as patch:
            receive = link.receive
            patch.setattr(link, "receive", lambda timeout_s: receive(NEVER_S))
            verify.links._timeout_s = 2
            yield draft, verify


@pytest.fixture(scope="module")
def expected(services: Services) -> list[list[int]]:
    return [generate(services[1].stub, prompt, LENGTH)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("name", FAULTS)
def test_output_is_the_targets_whatever_the_draft_says(
    services: Services, expected: list[list[int]], name: str
) -> None:
    """Prevents one bad peer from changing a token, hanging a request or harming another draft's."""
    draft, verify = services
    with faulty(draft, FAULTS[name]()) as address:
        seats = [seat(draft.stub, address) for _ in PROMPTS]
        calls = [
            start(verify.stub, prompt, LENGTH, own)
            for prompt, own in zip(PROMPTS, seats, strict=True)
        ]
        beside = start(verify.stub, PROMPTS[0], LENGTH, seat(draft.stub, draft.address))
        answers = [call.finish() for call in calls]
        neighbour, done = beside.finish()
        assert [ids for ids, _ in answers] == expected
        assert neighbour == expected[0]
        assert done.speculation.accepted_tokens > 0, "another draft's request was harmed"
        assert verify.engine.idle.wait(60)
    for own in seats:  # a broken stream leaves tickets that nobody opened
        draft.stub.ReleaseSeat(draft_pb2.ReleaseSeatRequest(ticket=own.ticket))
    held = draft.stub.GetLoads(draft_pb2.DraftServiceGetLoadsRequest())
    loads = verify.stub.GetLoads(verify_pb2.GetLoadsRequest())
    assert (loads.running, loads.waiting, loads.kv_pages_used) == (0, 0, 0)
    assert held.sessions <= 0 or held.streams > 1, "sessions outlive their stream"
