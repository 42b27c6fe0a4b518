"""Which steps may start before the one before is committed, and whose rows of them count."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from verify_service.scheduler import Work
from verify_service.sequence import Chosen, DraftSession, Request, Sequence

pytest.importorskip("triton")
from domino_kernels.gpu.attention_fixed import Cuts
from domino_kernels.gpu.attention_plan import AttentionPlan
from verify_service.gpu_ahead import Ahead, next_step
from verify_service.gpu_executor import GpuExecutor
from verify_service.ranks import Ranks

PAGE = 4


def running(max_tokens: int = 9) -> Work:
    """A sequence of 6 positions that runs its last token, in two pages."""
    request = Request(
        request_id="", prompt_ids=[1] * 6, max_tokens=max_tokens, stop_ids=frozenset(), emit=print
    )
    sequence = Sequence(request, pages=[7, 3], kv_len=6)
    sequence.tokens.append(50)
    return Work(sequence=sequence, ids=[50], choices=1)


def committed(item: Work, token: int) -> Work:
    """What runs next."""
    item.sequence.commit(item.ids, Chosen(ids=[token]))
    item.sequence.send()
    return Work(sequence=item.sequence, ids=[token], choices=1)


def step(width: int = 1) -> Any:
    """A step that notes how often the next one was started."""
    started: list[int] = []

    def launch_next() -> Any:
        started.append(1)
        return lambda: [[0, 60, 60], [0, 61, 61]]

    bucket = SimpleNamespace(width=width, page_size=PAGE)
    return SimpleNamespace(bucket=bucket, launch_next=launch_next, started=started)


def ahead_of(work: list[Work], ids: list[int]) -> Ahead:
    found = next_step(work, step())
    assert found is not None
    found.ids = [[token] for token in ids]
    return found


def test_rows_are_found_by_sequence_position_page_and_id() -> None:
    """A row of another place or of another token would be a wrong answer's."""
    first, second = running(), running()
    ahead = ahead_of([first, second], [60, 61])
    assert ahead.row(first) is None, "it stands one position further"
    next_first, next_second = committed(first, 60), committed(second, 99)
    assert ahead.row(next_first) == 0
    assert ahead.row(next_second) is None, "another token was kept, as synthetic acceptance does"
    assert ahead.row(running()) is None, "no such sequence"
    wide = Work(sequence=first.sequence, ids=[60, 5], choices=2)
    assert ahead.row(wide) is None, "proposals came"
    first.sequence.pages = [3, 7]
    assert ahead.row(next_first) is None, "preempted and readmitted elsewhere"


def test_nothing_counts_before_the_step_before_is_read() -> None:
    """Its ids are not known to the host yet."""
    item = running()
    found = next_step([item], step())
    assert found is not None and found.row(committed(item, 60)) is None


@pytest.mark.parametrize("reason", ["width", "ends", "page", "draft"])
def test_steps_that_cannot_be_known_are_not_started(reason: str) -> None:
    """One without a page writes into another sequence's; the others are work for nothing."""
    item, one = running(1 if reason == "ends" else 9), step(8 if reason == "width" else 1)
    if reason == "ends":
        item.sequence.tokens.pop()  # the next token is the first and the last
    if reason == "page":
        item.sequence.kv_len = 7
    if reason == "draft":
        plan: Any = None
        item.sequence.draft = DraftSession(plan=plan, session=1)
    assert next_step([running(), item], one) is None
    assert not one.started


def test_a_draft_that_rests_lets_plain_steps_start_early() -> None:
    """Plain steps of policy auto that are slower than plain decoding by the host's work."""
    plan: Any = None
    item, one = running(), step()
    item.sequence.draft = DraftSession(plan=plan, session=1, opened=True, resting=True)
    assert next_step([running(), item], one) is not None
    assert one.started == [1]


def on_graphs(events: list[str]) -> GpuExecutor:
    """One that plays a rank of two; every step chooses 60 for its first row, 61 for the next."""
    executor = object.__new__(GpuExecutor)

    def read(what: str) -> list[list[int]]:
        events.append(what)
        return [[0, 60, 60], [0, 61, 61]]

    def launch(work: list[Work], ids: object, pretend: object) -> Any:
        bucket = SimpleNamespace(width=1, page_size=PAGE)

        def launch_next() -> Any:
            events.append("next")
            return partial(read, "read")

        step = SimpleNamespace(
            bucket=bucket, launch_next=launch_next, verified=lambda: f"after {events[-1]}"
        )
        return partial(read, "first"), step

    vocabulary = SimpleNamespace(ranks=Ranks(0, 2))
    vars(executor).update(
        _overlap=True, _page_size=PAGE, _ahead=None, _awaited=None, _going=None, num_graph=0,
        _gpu=SimpleNamespace(vocabulary=vocabulary),
        _graphs=SimpleNamespace(most=(8, 16), launch=launch),
    )  # fmt: skip
    return executor


def test_other_ranks_are_told_what_is_launched_and_nothing_else() -> None:
    """A step that one rank runs alone waits for ever in its first sum over ranks."""
    told: list[list[int] | None] = []
    executor, item, other = on_graphs([]), running(), running()
    item.sequence.pages.append(5)
    executor.tell = lambda work: told.append(None if work is None else [len(w.ids) for w in work])
    assert executor.start([item])()[0].ids == [60]
    assert told == [[1], None], "a step, and the one that started behind it"
    item = committed(item, 60)
    answer = executor.start([item])
    assert answer()[0].ids == [60] and told[2:] == [None], "that one runs already, one more starts"
    item = committed(item, 60)
    chosen = executor.start([item, other])()
    assert [c.ids for c in chosen] == [[60], [60]] and told[3:] == [[1]], "the newcomer alone"


def test_a_draft_is_shown_a_step_before_the_next_one_moves_its_rows_on() -> None:
    """Positions of the step after would be taken for those of rows that are not there yet."""
    events = ["launched"]
    executor, item = on_graphs(events), running()
    executor.start([item])
    assert executor.launched is None, "the next one has started: nobody drafts behind this one"
    item.sequence.kv_len = 7
    executor.start([Work(sequence=item.sequence, ids=[50], choices=1)])
    assert executor.launched == "after next", "it has no page to go on to"


def test_other_ranks_are_one_step_ahead_at_most() -> None:
    """One that launches whatever it is told fills its device's queue."""
    events: list[str] = []
    executor = on_graphs(events)
    executor.run([running()])
    executor.go_on()
    executor.go_on()
    assert events == ["first", "next", "next", "read"]


def test_fixed_plans_cut_alike_whatever_the_batch() -> None:
    """Another tile or piece for another batch is another order of additions."""
    plan = AttentionPlan(heads=9, kv_heads=3, head_dim=64, element_size=2, cuts=Cuts.of(8192))
    assert {plan.tile_rows(rows) for rows in (1, 5, 16, 300)} == {21}
    assert [plan.splits(tiles, 21, 600) for tiles in (1, 64)] == [3, 3]
    long = Cuts.of(40960)
    assert (long.far, long.most) == (1536, 40)
    assert [long.pieces(n) for n in (1, 256, 257, 4096, 4097, 40960)] == [1, 1, 2, 16, 17, 40]
