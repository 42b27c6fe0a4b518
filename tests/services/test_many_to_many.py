"""One draft for two verify services, two drafts for one, halves that take turns: equal tokens."""

import grpc

from domino_serve.v1 import draft_pb2_grpc, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from tests.recorded_models import PROMPTS
from tests.services.processes import Process, running
from tests.services.requests import Call, seat, start


def begin(verify: Process, draft: Process | None, case: int) -> Call:
    """Starts the case-th request; plain without a draft."""
    place = None
    if draft:
        stub = draft_pb2_grpc.DraftServiceStub(grpc.insecure_channel(draft.address))
        place = seat(stub, draft.address, mode=(spec.MODE_DOMINO, spec.MODE_DFLASH)[case % 2])
    stub_there = verify_pb2_grpc.VerifyServiceStub(grpc.insecure_channel(verify.address))
    return start(stub_there, PROMPTS[case % len(PROMPTS)], 30 + 5 * case, place)


def test_drafts_and_verify_services_pair_as_they_like() -> None:
    """Sessions of two verify services with the same numbers, or answers of two drafts in one step,
    that are taken for each other's; a half that waits for ever."""
    with (
        running("draft_service") as first,
        running("draft_service") as second,
        running("verify_service", width=6) as whole,
        running("verify_service", width=6, ping_pong="always") as halves,
    ):
        expected = [begin(whole, None, case).finish()[0] for case in range(4)]
        calls = [
            (case, begin(verify, draft, case))
            for case in range(4)
            for verify in (whole, halves)
            for draft in (first, second)
        ]
        accepted = 0
        for case, call in calls:
            ids, done = call.finish()
            assert ids == expected[case]
            assert done.speculation.proposed_tokens > 0
            accepted += done.speculation.accepted_tokens
        assert accepted > 0, "nothing accepted, nothing tested"
