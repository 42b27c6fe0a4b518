"""Speculative output is plain output, token for token, over real gRPC and in any company."""

from collections.abc import Iterator

import pytest

from domino_serve.v1 import speculation_pb2 as spec
from tests.recorded_models import PROMPTS
from tests.services.requests import Call, seat, start
from tests.services.served import Draft, Verify, serve_draft, serve_verify

AR, DFLASH, DOMINO = spec.MODE_AR, spec.MODE_DFLASH, spec.MODE_DOMINO
Services = tuple[Draft, Verify]


@pytest.fixture(scope="module", params=["inline", "shm"])
def services(request: pytest.FixtureRequest) -> Iterator[Services]:
    """By each data plane of a CPU; in-process is that of tests/exactness."""
    plane: str = request.param
    with serve_draft() as draft, serve_verify(prefill_tokens=16, data_plane=plane) as verify:
        yield draft, verify


def begin(services: Services, case: int, mode: spec.Mode.ValueType) -> Call:
    """Starts the case-th request; prompts repeat, lengths do not."""
    draft, verify = services
    place = None if mode == AR else seat(draft.stub, draft.address, mode=mode)
    return start(verify.stub, PROMPTS[case % len(PROMPTS)], 20 + 5 * case, place)


@pytest.mark.parametrize(
    "modes", [[DFLASH], [DOMINO], [DOMINO, DFLASH, AR], [DOMINO, AR, DFLASH, DOMINO] * 2]
)
def test_staggered_batches_of_every_mode(
    services: Services, modes: list[spec.Mode.ValueType]
) -> None:
    """Rows or proposals that reach another session on the way change its neighbour's tokens."""
    plain = [begin(services, i, AR).finish()[0] for i in range(len(modes))]
    calls = [begin(services, i, mode) for i, mode in enumerate(modes)]
    accepted = 0
    for call, mode, expected in zip(calls, modes, plain, strict=True):
        ids, done = call.finish()
        assert ids == expected
        assert done.speculation.mode == mode
        assert (done.speculation.proposed_tokens > 0) == (mode != AR)
        accepted += done.speculation.accepted_tokens
    assert accepted > 0, "nothing accepted, nothing tested"
