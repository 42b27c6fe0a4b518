"""The draft's bookkeeping: repeats, gaps, refusals beside good neighbours, and freed memory."""

import functools
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from domino_kernels.attention import Batch
from domino_kernels.paged_kv import PagedKV
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from draft_service.engine import DraftEngine
from draft_service.load import load
from draft_service.model import DraftModel
from serving.errors import BadRequest, Overloaded
from tests.draft.exchange import Peer, append, ids, random_rows, reason, step
from tests.recorded_models import BLOCK, DFLASH, DOMINO_SHIFT, TARGET, VOCAB

MAX_ROWS, SESSIONS, PAGE_SIZE, POSITIONS = 32, 4, 16, 512


def load_engine() -> DraftEngine:
    config = DraftServiceConfig(
        target=TARGET,
        draft=DOMINO_SHIFT,
        threads=1,
        page_size=PAGE_SIZE,
        kv_tokens=POSITIONS,
        max_sessions=SESSIONS,
        max_rows=MAX_ROWS,
    )
    return load(config).engine


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A stream to a new engine; once it ends, every seat and page must be free again."""
    peer = Peer(load_engine())
    yield peer
    peer.engine.close(peer.stream)
    assert_free(peer.engine, seats=SESSIONS)


def assert_free(engine: DraftEngine, seats: int) -> None:
    """Reserves what should be free: so many seats, and not one more."""
    for _ in range(seats):
        engine.reserve(spec.MODE_DOMINO, POSITIONS // SESSIONS - BLOCK)
    with pytest.raises(Overloaded):
        engine.reserve(spec.MODE_DOMINO, 1)


def test_rows_may_come_in_any_portions(peer: Peer) -> None:
    """Draft KV is a pure function of the rows: chunked prompts must draft as whole ones do."""
    rows = random_rows(20, seed=1)
    whole = peer.exchange(step(1, 1, 0, 20), rows=rows, opens=[peer.open(1)])
    peer.exchange(append(2, 1, 0, 7), rows=rows[:7], opens=[peer.open(2)])
    peer.exchange(append(2, 2, 7, 9), rows=rows[7:16])
    chunked = peer.exchange(step(2, 3, 16, 4), rows=rows[16:])
    assert ids(chunked[0]) == ids(whole[0])
    assert len(ids(whole[0])) == BLOCK - 1
    assert all(0 <= token < VOCAB for token in ids(whole[0]))


def test_the_block_leaves_nothing_behind(peer: Peer) -> None:
    """A block's own KV, if it were read as context later, would spoil every following draft."""
    rows = random_rows(12, seed=2)
    first, last = torch.cat((rows[:5], rows[:5])), torch.cat((rows[5:], rows[5:]))
    opens = [peer.open(1), peer.open(2)]
    peer.exchange(step(1, 1, 0, 5), append(2, 1, 0, 5), rows=first, opens=opens)
    answers = peer.exchange(step(1, 2, 5, 7), step(2, 2, 5, 7), rows=last)
    assert ids(answers[0]) == ids(answers[1])


def test_the_same_step_again_gets_the_same_answer(peer: Peer) -> None:
    """A message repeated after a reconnect must not append its rows twice."""
    rows = random_rows(6, seed=3)
    first = peer.exchange(step(1, 1, 0, 6), rows=rows, opens=[peer.open(1)])
    again = peer.exchange(step(1, 1, 0, 6), rows=rows)
    assert again == first
    assert first[0].proposals.draft_kv_len == 6
    follow_up = peer.exchange(step(1, 2, 6, 0))
    assert follow_up[0].proposals.draft_kv_len == 6


def test_a_session_of_another_context_is_not_opened(peer: Peer) -> None:
    """A restarted draft with other weights would draft from rows that were made for the old."""
    opening = peer.open(1)
    opening.context_id ^= 1
    stale, unknown = peer.exchange(step(1, 1, 0, 0), opens=[opening])
    assert (reason(stale), stale.error.field) == ("STALE", "context_id")
    assert stale.error.expected == peer.engine.context_id
    assert reason(unknown) == "UNKNOWN_SESSION"
    opening.context_id ^= 1
    assert ids(peer.exchange(step(1, 1, 0, 0), opens=[opening])[0]), "the seat was not used up"


def test_refused_steps_change_nothing(peer: Peer) -> None:
    """A refusal after half the work would leave the session out of step for good."""
    rows = random_rows(8, seed=4)
    peer.exchange(append(1, 5, 0, 4), rows=rows[:4], opens=[peer.open(1)])
    gap = peer.exchange(step(1, 6, 5, 4), rows=rows[4:])[0]
    assert (reason(gap), gap.error.expected, gap.error.actual) == ("CONTEXT_GAP", 4, 5)
    assert reason(peer.exchange(step(1, 4, 4, 4), rows=rows[4:])[0]) == "STALE"
    assert reason(peer.exchange(step(1, 6, 4, 0, current=VOCAB))[0]) == "INVALID"
    assert reason(peer.exchange(step(1, 6, 4, 4, draft_tokens=99), rows=rows[4:])[0]) == "INVALID"
    good = peer.exchange(step(1, 6, 4, 4), rows=rows[4:])
    alone = peer.exchange(step(2, 1, 0, 8), rows=rows, opens=[peer.open(2)])
    assert ids(good[0]) == ids(alone[0])
    assert good[0].step == 6


WRONG = {
    "gap": step(2, 2, 9, 3),
    "stale": step(2, 0, 4, 3),
    "unknown session": step(8, 1, 0, 3),
    "current out of range": step(2, 2, 4, 3, current=-7),
    "too many draft tokens": step(2, 2, 4, 3, draft_tokens=BLOCK + 1),
    "positions run out": step(2, 2, 4, 20),
    "negative rows": step(2, 2, 4, -3),
    "no rows and no such session": step(8, 1, 0, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_sessions_error_leaves_the_others_answers_alone(peer: Peer, name: str) -> None:
    """A refused step must not shift whose rows are whose."""
    wrong = WRONG[name]
    rows = {session: random_rows(10, seed=session) for session in (1, 2, 3)}
    opens = [peer.open(1), peer.open(2, positions=8), peer.open(3)]
    start = [append(session, 1, 0, 4) for session in (1, 2, 3)]
    peer.exchange(*start, rows=torch.cat([r[:4] for r in rows.values()]), opens=opens)
    count = max(wrong.num_rows, 0)
    sent = torch.cat((rows[1][4:], random_rows(count, seed=9), rows[3][4:]))
    results = peer.exchange(step(1, 2, 4, 6), wrong, step(3, 2, 4, 6), rows=sent)
    assert [r.WhichOneof("answer") for r in results].count("error") == 1
    answers = {r.session: ids(r) for r in results if r.HasField("proposals")}

    alone = peer.open(4)
    for session in (1, 3):
        peer.exchange(step(4, 1, 0, 10), rows=rows[session], opens=[alone])
        expected = peer.exchange(step(4, 2, 10, 0), closes=[4])
        assert answers[session] == ids(expected[0])
        alone = peer.open(4) if session == 1 else alone


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_rows_that_are_no_numbers_reach_no_page(peer: Peer, value: float) -> None:
    """NaN in a page would spoil every session that gets the page after this one."""
    rows = random_rows(6, seed=8)
    expected = ids(peer.exchange(step(1, 1, 0, 6), rows=rows, opens=[peer.open(1)], closes=[1])[0])
    bad = torch.full_like(rows, 0.5)
    bad[3, 7] = value
    opens = [peer.open(2), peer.open(3)]
    refused, good = peer.exchange(
        step(2, 1, 0, 6), step(3, 1, 0, 6), rows=torch.cat((bad, rows)), opens=opens
    )
    assert (reason(refused), refused.error.field) == ("INVALID", "rows")
    assert ids(good) == expected
    assert ids(peer.exchange(step(2, 1, 0, 6), rows=rows)[0]) == expected, "nothing was appended"


def test_a_session_twice_in_a_message_is_refused_once(peer: Peer) -> None:
    """Both steps would write the same positions, and the session would count them twice."""
    rows = random_rows(8, seed=5)
    twice = (step(1, 1, 0, 4), step(1, 2, 0, 4))
    first, second = peer.exchange(*twice, rows=rows, opens=[peer.open(1)])
    assert first.proposals.draft_kv_len == 4
    assert reason(second) == "INVALID"
    assert ids(peer.exchange(step(1, 2, 4, 4), rows=rows[4:])[0])


def test_bad_openings_are_told_and_free_what_they_took(peer: Peer) -> None:
    """A wrong opening that keeps its seat fills the draft with nobody."""
    used = peer.open(1)
    peer.exchange(opens=[used])
    unknown = peer.open(2)
    peer.engine.release(unknown.ticket)
    taken = peer.open(1)
    other_mode = peer.open(3)
    other_mode.mode = spec.MODE_DFLASH
    results = peer.exchange(opens=[used, unknown, taken, other_mode])
    assert sorted(map(reason, results)) == ["INVALID", "INVALID", "TICKET", "TICKET"]
    assert all(result.step == 0 for result in results)


def test_modes_share_a_message(peer: Peer) -> None:
    """Each session drafts by its own mode, whatever its neighbours do."""
    rows = random_rows(9, seed=6)
    opens = [peer.open(1, spec.MODE_DOMINO), peer.open(2, spec.MODE_DFLASH)]
    both = peer.exchange(
        step(1, 1, 0, 9), step(2, 1, 0, 9), rows=torch.cat((rows, rows)), opens=opens
    )
    domino, dflash = map(ids, both)
    assert domino[0] == dflash[0], "the first token has no correction"
    assert domino != dflash
    assert ids(peer.exchange(step(1, 2, 9, 0))[0]) == domino
    assert ids(peer.exchange(step(2, 2, 9, 0))[0]) == dflash


def test_fewer_draft_tokens_are_the_first_ones(peer: Peer) -> None:
    """The width policy may change the width at any step without changing what is drafted."""
    rows = random_rows(9, seed=7)
    opens = [peer.open(1), peer.open(2)]
    short, whole = peer.exchange(
        step(1, 1, 0, 9, draft_tokens=3),
        step(2, 1, 0, 9, draft_tokens=BLOCK),
        rows=torch.cat((rows, rows)),
        opens=opens,
    )
    assert ids(short) == ids(whole)[:3]
    assert len(ids(whole)) == BLOCK


def test_messages_that_cannot_be_taken_apart(peer: Peer) -> None:
    """With rows that are not the steps' nobody can say whose are whose."""
    peer.exchange(opens=[peer.open(1)])
    with pytest.raises(BadRequest, match="has 0 rows, the steps say 4"):
        peer.exchange(append(1, 1, 0, 4))
    with pytest.raises(BadRequest, match="has 5 rows, the steps say 4"):
        peer.exchange(append(1, 1, 0, 4), rows=random_rows(5, seed=1))
    with pytest.raises(BadRequest, match=f"has {MAX_ROWS + 1} rows, {MAX_ROWS} at most"):
        peer.exchange(append(1, 1, 0, MAX_ROWS + 1), rows=random_rows(MAX_ROWS + 1, seed=1))


def test_seats_do_not_wait_for_a_running_step(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router waits a moment for a seat, then runs plain: a long step would cost the draft."""
    working, go_on = threading.Event(), threading.Event()
    append = DraftModel.append

    def held(model: DraftModel, rows: Tensor, batch: Batch, kv: PagedKV) -> None:
        working.set()
        assert go_on.wait(60)
        append(model, rows, batch, kv)

    monkeypatch.setattr(DraftModel, "append", held)
    rows, opens = random_rows(4, seed=1), [peer.open(1)]
    exchange = functools.partial(peer.exchange, step(1, 1, 0, 4), rows=rows, opens=opens)
    running = threading.Thread(target=exchange)
    running.start()
    assert working.wait(60)
    reserved = peer.open(2)
    go_on.set()
    running.join(60)
    assert peer.exchange(opens=[reserved]) == []


def test_closing_frees_pages_and_seats(peer: Peer) -> None:
    """Pages that stay with ended sessions fill the draft within minutes."""
    for _ in range(3):
        opens = [peer.open(i, positions=POSITIONS // SESSIONS - BLOCK) for i in range(SESSIONS)]
        with pytest.raises(Overloaded):
            peer.engine.reserve(spec.MODE_DOMINO, 1)
        assert peer.exchange(opens=opens, closes=range(SESSIONS)) == []


def test_a_stream_that_ends_frees_its_sessions_alone() -> None:
    """A verify service that dies must not keep seats, nor take those of another."""
    engine = load_engine()
    dying, living = Peer(engine), Peer(engine)
    rows = random_rows(4, seed=8)
    dying.exchange(opens=[dying.open(1), dying.open(2)])
    expected = living.exchange(step(1, 1, 0, 4), rows=rows, opens=[living.open(1)])
    engine.close(dying.stream)
    assert ids(living.exchange(step(1, 2, 4, 0))[0]) == ids(expected[0])
    assert reason(dying.exchange(step(1, 1, 0, 0))[0]) == "UNKNOWN_SESSION"
    assert_free(engine, seats=SESSIONS - 1)


def test_seats_are_refused_for_what_cannot_be_drafted(peer: Peer) -> None:
    """A request in a mode without a head must hear of it before it runs."""
    engine = load(DraftServiceConfig(target=TARGET, draft=DFLASH, threads=1, kv_tokens=64)).engine
    with pytest.raises(BadRequest, match="cannot draft in mode domino"):
        engine.reserve(spec.MODE_DOMINO, 1)
    with pytest.raises(BadRequest, match="cannot draft in mode ar"):
        peer.engine.reserve(spec.MODE_AR, 1)
    with pytest.raises(BadRequest, match="max_positions: 0 is below 1"):
        peer.engine.reserve(spec.MODE_DOMINO, 0)


def test_loads_count_steps(peer: Peer) -> None:
    """Drafts that silently leave the graphs only show as slow ones."""
    peer.exchange(step(1, 1, 0, 3), rows=random_rows(3, seed=1), opens=[peer.open(1)])
    peer.exchange(append(1, 2, 3, 2), rows=random_rows(2, seed=2))
    loads = peer.engine.loads()
    assert (loads.graph_steps, loads.eager_steps, loads.sessions) == (0, 2, 1)
