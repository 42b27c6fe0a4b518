"""Whose rows a pass makes, while two drafts of one shape are served."""

from domino_serve.v1 import speculation_pb2 as spec
from verify_service.sequence import DraftWish, Request, Sequence
from verify_service.turns import Turns

WISH = DraftWish(address="draft:1", mode=spec.MODE_DOMINO, draft_tokens=3)


def sequence(projection: int | None, *, kv_len: int = 5, wish: DraftWish | None = WISH) -> Sequence:
    request = Request(
        request_id="x",
        prompt_ids=[1] * 9,
        max_tokens=3,
        stop_ids=frozenset(),
        emit=lambda event: None,
        wish=wish,
    )
    return Sequence(request, kv_len=kv_len, projection=projection)


def test_all_run_together_where_there_is_one_draft() -> None:
    """Prevents half the speed for everybody, for ever, after the first update."""
    turns, running = Turns(), [sequence(0), sequence(0), sequence(None, wish=None)]
    assert turns.take(running) == running
    assert turns.take(running) == running
    assert turns.current == 0


def test_both_kinds_take_turns_and_plain_requests_run_in_each() -> None:
    """Prevents one kind from waiting for the other's end."""
    turns = Turns()
    turns.newest = 1
    old, new, plain = sequence(0), sequence(1), sequence(None, wish=None)
    passes = [(turns.take([old, new, plain]), turns.current) for _ in range(3)]
    assert passes == [([new, plain], 1), ([old, plain], 0), ([new, plain], 1)]
    assert (turns.take([old, plain]), turns.current) == ([old, plain], 0)


def test_a_request_that_begins_takes_the_newest() -> None:
    """Prevents rows of no draft in particular, which none could use later."""
    turns = Turns()
    turns.newest = 1
    fresh, old = sequence(None, kv_len=0), sequence(0)
    assert turns.take([old, fresh]) == [fresh]
    assert fresh.projection == 1


def test_rows_of_a_projection_that_is_gone_are_nobodys() -> None:
    """Prevents a pass that asks for weights which are not kept any more."""
    turns = Turns()
    turns.newest = 2
    gone, kept = sequence(0), sequence(1)
    assert turns.take([gone, kept]) == [gone, kept]
    assert (gone.projection, turns.current) == (None, 1)
    assert not gone.suits(0) and not gone.suits(2) and kept.suits(1)
