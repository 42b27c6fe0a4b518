"""Verify and draft in one process: the same tokens without a hop, and what services do besides."""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from domino_cli.one_process import OneProcessConfig
from domino_client import Client
from domino_serve.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc
from domino_serve.v1 import speculation_pb2 as spec
from serving.channel import channel
from serving.option_type import OptionError
from serving.transport.plane import IN_PROCESS, SHM
from tests.recorded_models import DOMINO_SHIFT, PROMPTS, TARGET
from tests.services.checkpoints import other_weights
from tests.services.processes import Process, running
from tests.services.requests import generate, seat, start
from tests.services.served import serve_verify
from tests.services.whole import target_with_tokenizer

MODES = (spec.MODE_DOMINO, spec.MODE_DFLASH, spec.MODE_DOMINO)
WAIT_S = 60.0
Stubs = tuple[verify_pb2_grpc.VerifyServiceStub, draft_pb2_grpc.DraftServiceStub]


@pytest.fixture(scope="module")
def engines() -> Iterator[Process]:
    with running("domino_cli.one_process", width_policy="fixed", max_sessions=3) as process:
        yield process


@pytest.fixture
def stubs(engines: Process) -> Iterator[Stubs]:
    with channel(engines.address) as calls:
        yield verify_pb2_grpc.VerifyServiceStub(calls), draft_pb2_grpc.DraftServiceStub(calls)


def links(verify: verify_pb2_grpc.VerifyServiceStub) -> list[verify_pb2.DraftLinkLoad]:
    return list(verify.GetLoads(verify_pb2.GetLoadsRequest()).draft_links)


def test_output_is_the_plain_one_and_the_draft_takes_part(engines: Process, stubs: Stubs) -> None:
    """Rows that are passed by reference may be written over by the next step."""
    verify, draft = stubs
    plain = [generate(verify, PROMPTS[i], 30 + 9 * i)[0] for i in range(len(MODES))]
    calls = [
        start(verify, PROMPTS[i], 30 + 9 * i, seat(draft, engines.address, mode=mode))
        for i, mode in enumerate(MODES)
    ]
    found = [call.finish() for call in calls]
    assert [ids for ids, _ in found] == plain
    assert found[0][1].speculation.accepted_tokens > 0, (found[0][1], engines.log[-8:])
    (link,) = links(verify)
    assert (link.address, link.data_plane) == (engines.address, IN_PROCESS)


def test_seats_are_counted_and_given_back(engines: Process, stubs: Stubs) -> None:
    """A process of both must not lose the bounds of either."""
    verify, draft = stubs
    await_no_session(draft)  # of the tests before
    places = [seat(draft, engines.address) for _ in range(3)]
    with pytest.raises(grpc.RpcError) as caught:
        seat(draft, engines.address)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for place in places:
        generate(verify, PROMPTS[0], 12, place)
    loads = await_no_session(draft)
    assert (loads.reserved, loads.kv_pages_used) == (0, 0)


def await_no_session(
    draft: draft_pb2_grpc.DraftServiceStub,
) -> draft_pb2.DraftServiceGetLoadsResponse:
    """Seats are given back a moment after an answer."""
    deadline = time.monotonic() + WAIT_S
    while (loads := draft.GetLoads(draft_pb2.DraftServiceGetLoadsRequest())).sessions:
        assert time.monotonic() < deadline, loads
    return loads


def test_other_verify_services_may_use_its_draft(engines: Process, stubs: Stubs) -> None:
    """It is a draft service like any other, also while its own engine waits for work."""
    with serve_verify() as other:
        plain, _ = generate(other.stub, PROMPTS[0], 40)
        ids, done = generate(other.stub, PROMPTS[0], 40, seat(stubs[1], engines.address))
        assert [link.data_plane for link in links(other.stub)] == [SHM]
    assert ids == plain
    assert done.speculation.accepted_tokens > 0


def test_its_verify_may_use_other_drafts(stubs: Stubs) -> None:
    """It is a verify service like any other."""
    with running("draft_service") as other, channel(other.address) as calls:
        place = seat(draft_pb2_grpc.DraftServiceStub(calls), other.address)
        plain, _ = generate(stubs[0], PROMPTS[0], 40)
        ids, done = generate(stubs[0], PROMPTS[0], 40, place)
    assert ids == plain
    assert done.speculation.accepted_tokens > 0


def test_the_router_takes_one_address_for_both(
    engines: Process, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As `domino-serve up --data-plane in-process` starts them."""
    target = target_with_tokenizer(tmp_path_factory.mktemp("target"))
    own = {"draft": engines.address, "verify": engines.address, "threads": None, "page_size": None}
    with (
        running("router", **{**own, "target": target}) as router,
        Client(router.address, timeout_s=60) as client,
    ):
        done = client.generate(token_ids=PROMPTS[0], max_tokens=24, ignore_eos=True)
    assert done.completion_tokens == 24
    assert done.speculation.accepted_tokens > 0


def test_an_update_of_its_draft_is_taken_up(tmp_path: Path) -> None:
    """Without a stream that ends nothing tells verify that its sessions are gone."""
    poor = other_weights(tmp_path)
    with (
        running("domino_cli.one_process", draft=poor, width_policy="fixed") as process,
        channel(process.address) as calls,
    ):
        verify = verify_pb2_grpc.VerifyServiceStub(calls)
        draft = draft_pb2_grpc.DraftServiceStub(calls)
        plain, _ = generate(verify, PROMPTS[0], 60)
        before, old = generate(verify, PROMPTS[0], 60, seat(draft, process.address))
        request = draft_pb2.UpdateDraftWeightsRequest(folder=str(DOMINO_SHIFT))
        assert draft.UpdateDraftWeights(request, timeout=WAIT_S).changed
        after, new = generate(verify, PROMPTS[0], 60, seat(draft, process.address))
        assert before == plain == after
        assert new.speculation.accepted_tokens > old.speculation.accepted_tokens
        assert new.speculation.plain_steps < 5


def test_options_are_checked_as_those_of_each_service() -> None:
    """A draft's option must not be lost between the two."""
    config = OneProcessConfig(
        target=TARGET, draft=DOMINO_SHIFT, draft_kv_tokens=640, domino_candidates="certified"
    )
    assert config.draft_config().kv_tokens == 640
    assert config.draft_config().domino_candidates == "certified"
    with pytest.raises(OptionError, match="option domino_candidates"):
        OneProcessConfig(target=TARGET, draft=DOMINO_SHIFT, domino_candidates="-1")
    with pytest.raises(OptionError, match="option draft: None is missing"):
        OneProcessConfig(target=TARGET)
