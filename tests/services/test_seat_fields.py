"""A request's seat, field by field: out of range is refused by name, useless is decoded plainly."""

from collections.abc import Iterator

import grpc
import pytest

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2
from serving.errors import BadRequest, from_rpc_error
from tests.recorded_models import BLOCK, DOMINO_NOSHIFT, DOMINO_SHIFT, PROMPTS
from tests.services.requests import generate, seat
from tests.services.served import Verify, serve_draft, serve_verify

PROMPT = PROMPTS[0]


def place(**fields: object) -> verify_pb2.DraftSeat:
    values = {"address": "127.0.0.1:1", "ticket": "t", "mode": spec.MODE_DOMINO, "draft_tokens": 1}
    return verify_pb2.DraftSeat(**(values | fields))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def verify() -> Iterator[Verify]:
    with serve_verify() as running:
        yield running


def refusal(verify: Verify, bad: verify_pb2.DraftSeat) -> BadRequest:
    with pytest.raises(grpc.RpcError) as caught:
        generate(verify.stub, PROMPT, 5, bad)
    error = from_rpc_error(caught.value)
    assert isinstance(error, BadRequest)
    assert len(generate(verify.stub, PROMPT, 5)[0]) == 5
    return error


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draft_tokens": 0}, f"draft.draft_tokens: 0 is not in [1, {BLOCK}]"),
        ({"draft_tokens": -1}, f"draft.draft_tokens: -1 is not in [1, {BLOCK}]"),
        ({"draft_tokens": BLOCK + 1}, f"draft.draft_tokens: {BLOCK + 1} is not in [1, {BLOCK}]"),
        ({"draft_tokens": 2**63 - 1}, "draft.draft_tokens: 9223372036854775807 is not in"),
        ({"mode": spec.MODE_AR}, "draft.mode: ar does not draft"),
        ({"mode": spec.MODE_UNSPECIFIED}, "draft.mode: unspecified does not draft"),
        ({"mode": 9}, "draft.mode: mode 9 does not draft"),
    ],
    ids=str,
)
def test_out_of_range_is_refused_by_name(
    verify: Verify, fields: dict[str, object], message: str
) -> None:
    """A width that is cut, or a mode that is replaced, without a word."""
    assert message in str(refusal(verify, place(**fields)))


def test_the_limit_follows_the_checkpoint_and_the_service() -> None:
    """An unshifted draft proposes one less, a service without a draft nothing."""
    with serve_verify(DOMINO_NOSHIFT) as unshifted:
        error = refusal(unshifted, place(draft_tokens=BLOCK))
        assert f"{BLOCK} is not in [1, {BLOCK - 1}]" in str(error)
    with serve_verify(None) as plain:
        assert "draft: this service was started without --draft" in str(refusal(plain, place()))


@pytest.mark.parametrize("tokens", [1, BLOCK - 1, BLOCK])
def test_limits_themselves_are_served(tokens: int) -> None:
    """B - 1 is the default, B the whole block of a draft with shifted labels ("b8+1")."""
    with serve_draft(DOMINO_SHIFT) as draft, serve_verify(width=tokens + 1) as verify:
        assert verify.info.default_draft_tokens == tokens
        drafted = seat(draft.stub, draft.address, draft_tokens=tokens)
        ids, done = generate(verify.stub, PROMPT, 40, drafted)
        assert ids == generate(verify.stub, PROMPT, 40)[0]
    assert done.speculation.width == tokens + 1
    assert len(done.speculation.accepted_by_position) == tokens


@pytest.mark.parametrize("address", ["", "no address", "127.0.0.1:99999", "\u6771:1"])
def test_an_address_that_leads_nowhere_costs_speed_only(verify: Verify, address: str) -> None:
    """A router's typing error must not look like a fault of the target."""
    ids, done = generate(verify.stub, PROMPT, 5, place(address=address))
    assert (ids, done.speculation.mode) == (generate(verify.stub, PROMPT, 5)[0], spec.MODE_AR)
