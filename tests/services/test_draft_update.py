"""A running draft service takes another checkpoint: exact output throughout, no restart."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
from safetensors.torch import load_file

from domino_cli.__main__ import main
from domino_serve.v1 import draft_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.checkpoint import Checkpoint
from serving.errors import BadRequest, Mismatch, from_rpc_error
from tests.recorded_models import DFLASH, DOMINO_SHIFT, PROMPTS
from tests.services.checkpoints import draft_copy, other_weights
from tests.services.requests import generate, seat, start, until_drafted
from tests.services.served import Draft, Verify, serve_draft, serve_verify, slow_while_without
from tests.standing_still import standing_still
from verify_service import draft_recovery
from verify_service.sequence import Sequence

NEW = 60
Patch = pytest.MonkeyPatch


def update(draft: Draft, folder: Path) -> draft_pb2.UpdateDraftWeightsResponse:
    request = draft_pb2.UpdateDraftWeightsRequest(folder=str(folder))
    return draft.stub.UpdateDraftWeights(request, timeout=60)


def drafted(verify: Verify, draft: Draft) -> list[tuple[list[int], spec.SpeculationStats]]:
    """Every prompt's answer and what speculation did."""
    found = []
    for prompt in PROMPTS:
        ids, done = generate(verify.stub, prompt, NEW, seat(draft.stub, draft.address))
        found.append((ids, done.speculation))
    return found


@contextmanager
def load(verify: Verify, draft: Draft, expected: list[list[int]]) -> Iterator[list[str]]:
    """Requests one after another on three threads; what went wrong, and at least one each."""
    wrong: list[str] = []
    over = threading.Event()

    def ask(number: int) -> None:
        while True:
            index = number % len(PROMPTS)
            place = seat(draft.stub, draft.address)
            ids, _ = generate(verify.stub, PROMPTS[index], NEW, place)
            if ids != expected[index]:
                wrong.append(f"prompt {index}: {ids}")
            if over.is_set():
                return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_an_update_under_load(tmp_path: Path) -> None:
    """Rows of the old projection in the new draft, or proposals of it for old rows, would draft
    worse for ever; anything that changes a token is worse."""
    with serve_verify() as verify, serve_draft() as draft:
        expected = [generate(verify.stub, prompt, NEW)[0] for prompt in PROMPTS]
        fresh = drafted(verify, draft)
    poor = other_weights(tmp_path)
    with serve_draft(poor) as draft, serve_verify(poor) as verify:
        before = drafted(verify, draft)
        context = draft.loaded.hello.context_id
        with load(verify, draft, expected) as wrong:
            answer = update(draft, DOMINO_SHIFT)
            again = update(draft, DOMINO_SHIFT)
        assert wrong == []
        until_drafted(verify.stub, PROMPTS[0], NEW, partial(seat, draft.stub, draft.address))
        after = drafted(verify, draft)
    assert answer.changed and answer.context_id != context
    assert (again.changed, again.context_id) == (False, answer.context_id)
    assert [ids for ids, _ in after] == [ids for ids, _ in before] == expected
    steps = [[s.verify_steps for _, s in run] for run in (before, after, fresh)]
    assert steps[1] == steps[2], "the updated pair drafts unlike a pair started with this draft"
    assert sum(steps[0]) > sum(steps[2]), "both drafts are as good, nothing tested"


@pytest.mark.parametrize("pays", [True, False])
def test_a_request_in_the_middle(pays: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    """Its draft KV is of the old weights; a mix of both drafts badly without any sign. For the new
    ones its positions run again where that pays; else each update slows every long request."""
    monkeypatch.setattr(draft_recovery, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(Sequence, "pays_anew", pays)
    with serve_draft(other_weights(tmp_path)) as draft, serve_verify(tmp_path) as verify:
        slow_while_without(verify, monkeypatch)
        expected = generate(verify.stub, PROMPTS[0], 400)[0]
        place = seat(draft.stub, draft.address, positions=500)
        with standing_still(verify.engine) as until_it_stands:
            call = start(verify.stub, PROMPTS[0], 400, place)
            until_it_stands()
            (running,) = verify.engine.scheduler.running
            update_and_part(verify, draft, DOMINO_SHIFT)
        ids, done = generate(verify.stub, PROMPTS[0], NEW, seat(draft.stub, draft.address))
        assert (ids, done.speculation.proposed_tokens > 0) == (expected[:NEW], True)
        ids, done = call.finish()
        assert ids == expected
        assert running.projection == (1 if pays else 0)
        assert done.speculation.plain_steps > 0
        if pays:
            whole = generate(verify.stub, PROMPTS[0], 400, seat(draft.stub, draft.address))[1]
            assert rate(done.speculation) > rate(whole.speculation) / 2, "rows of the old draft"


def rate(stats: spec.SpeculationStats) -> float:
    """Accepted tokens a drafted step."""
    return stats.accepted_tokens / (stats.verify_steps - stats.plain_steps)


def broken(folder: Path, kind: str) -> Path:
    if kind == "missing":
        return folder / "nowhere"
    if kind == "headless":
        return DFLASH
    if kind == "shape":
        return draft_copy(folder, nested={"mask_token_id": 251})
    norm = load_file(DOMINO_SHIFT / "model.safetensors")["norm.weight"]
    return draft_copy(folder, tensors={"norm.weight": norm * torch.nan})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "no such folder"),
        ("headless", "loaded draft's is"),
        ("shape", "mask_token_id is 251"),
        ("nan", "norm.weight has NaN"),
    ],
)
def test_a_bad_checkpoint_is_refused_and_the_old_one_serves(
    tmp_path: Path, kind: str, reason: str
) -> None:
    """A typo in a folder's name must not cost the running service its draft."""
    with serve_draft() as draft, serve_verify() as verify:
        first = drafted(verify, draft)
        with pytest.raises(grpc.RpcError) as caught:
            update(draft, broken(tmp_path, kind))
        error = from_rpc_error(caught.value)
        assert isinstance(error, BadRequest) and error.field == "folder"
        assert reason in str(error)
        assert drafted(verify, draft)[0] == first[0]
        assert [i for _, link in verify.links.items() if (i := link.alive)], "the stream ended"


def update_and_part(verify: Verify, draft: Draft, folder: Path) -> None:
    """Returns when the stream to the old version has ended: who comes then drafts with the new."""
    before = dict(verify.links.items()).get(draft.address)
    update(draft, folder)
    while before and before.alive:
        time.sleep(0.01)


def test_two_versions_at_once(tmp_path: Path) -> None:
    """While drafts are updated one after another each goes on drafting as if it were alone."""
    poor = other_weights(tmp_path)
    with serve_draft(poor) as one, serve_draft(poor) as two, serve_verify(poor) as verify:
        old = drafted(verify, one)
        expected = [ids for ids, _ in old]
        place = partial(seat, two.stub, two.address, positions=500)
        calls = [start(verify.stub, prompt, 400, place()) for prompt in PROMPTS[:2]]
        update_and_part(verify, one, DOMINO_SHIFT)
        both = [
            start(verify.stub, prompt, NEW, seat(draft.stub, draft.address))
            for prompt in PROMPTS
            for draft in (one, two)
        ]
        answers = [call.finish() for call in both]
        assert [ids for ids, _ in answers[::2]] == [ids for ids, _ in answers[1::2]] == expected
        updated, behind = drafted(verify, one), drafted(verify, two)
        assert steps(answers[::2]) == steps_of(updated), "another draft's rows"
        assert steps(answers[1::2]) == steps_of(behind) == steps_of(old), "another draft's rows"
        assert sum(steps_of(updated)) < sum(steps_of(old))
        assert verify.engine.scheduler.turns.newest == 1
        for prompt, call in zip(PROMPTS[:2], calls, strict=True):
            ids, done = call.finish()
            assert ids == generate(verify.stub, prompt, 400)[0]
            assert done.speculation.plain_steps <= 1, "it lost the draft it began with"
        update_and_part(verify, two, DOMINO_SHIFT)
        assert steps_of(drafted(verify, two)) == steps_of(updated)


def test_the_oldest_of_three_versions_is_forgotten(tmp_path: Path) -> None:
    """Prevents memory that grows with each update, and rows of a projection that is gone."""
    names = [tmp_path / name for name in "abc"]
    for seed, name in enumerate(names):
        other_weights(name, seed)
    with serve_draft() as one, serve_draft() as two, serve_verify() as verify:
        expected = [ids for ids, _ in drafted(verify, two)]
        calls = [start(verify.stub, p, NEW, seat(two.stub, two.address)) for p in PROMPTS]
        for name in names:
            update_and_part(verify, one, name)
            assert [ids for ids, _ in drafted(verify, one)] == expected
        assert [call.finish()[0] for call in calls] == expected
        assert len(verify.engine._executor._projections) == 2
        behind = drafted(verify, two)
        assert [ids for ids, _ in behind] == expected
        assert all(s.mode == spec.MODE_AR for _, s in behind)
        update(two, names[-1])
        # A link that was refused a moment ago is tried again after a while.
        verify.links._places[two.address].retry_at = 0.0
        assert sum(s.proposed_tokens for _, s in drafted(verify, two)) > 0


def steps(answers: list[tuple[list[int], verify_pb2.VerifyComplete]]) -> list[int]:
    return [done.speculation.verify_steps for _, done in answers]


def steps_of(found: list[tuple[list[int], spec.SpeculationStats]]) -> list[int]:
    return [stats.verify_steps for _, stats in found]


def test_a_draft_restarted_with_other_weights_is_followed_if_it_says_so(tmp_path: Path) -> None:
    """A rolling update restarts draft services; until verify's own turn they would be refused."""
    poor = other_weights(tmp_path)
    replaced = Checkpoint(poor).content_hash()
    with serve_draft() as draft, serve_verify() as verify:
        fresh = drafted(verify, draft)
    with serve_draft(replaces=f"{'0' * 64},{replaced}") as draft, serve_verify(poor) as verify:
        assert drafted(verify, draft) == fresh


def test_a_draft_of_another_shape_is_refused_whatever_it_replaces() -> None:
    """Prevents proposals of another length or vocabulary after a mix-up of folders."""
    replaced = Checkpoint(DOMINO_SHIFT).content_hash()
    with serve_draft(DFLASH, replaces=replaced) as draft, serve_verify() as verify:
        with pytest.raises(grpc.RpcError) as caught:
            request = verify_pb2.ConnectDraftRequest(address=draft.address)
            verify.stub.ConnectDraft(request, timeout=60)
        error = from_rpc_error(caught.value)
        assert isinstance(error, Mismatch) and error.field.startswith("draft.")


def test_another_draft_is_still_refused(tmp_path: Path) -> None:
    """Only drafts that were updated are followed: a wrong --draft must not go unnoticed."""
    with serve_draft(other_weights(tmp_path)) as draft, serve_verify() as verify:
        with pytest.raises(grpc.RpcError) as caught:
            request = verify_pb2.ConnectDraftRequest(address=draft.address)
            verify.stub.ConnectDraft(request, timeout=60)
        assert isinstance(from_rpc_error(caught.value), Mismatch)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a person types; a refusal names the folder's fault and exits with 2."""
    with serve_draft() as draft:
        command = ["update-draft", "--draft-address", draft.address, "--draft"]
        assert main([*command, str(other_weights(tmp_path))]) == 0
        assert json.loads(capsys.readouterr().out)["changed"]
        assert main([*command, str(DFLASH)]) == 2
        assert "restart the services" in capsys.readouterr().err
