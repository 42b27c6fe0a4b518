"""Verify's side of a draft: what it is sent, and that no answer of it can change the output."""

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor

from domino_serve.v1 import draft_pb2 as pb
from serving.errors import DraftUnavailable
from tests.verify.counting_engine import VOCAB, Answer, CountingEngine, counted, counting
from tests.verify.counting_link import CountingLink
from verify_service import drafting
from verify_service.row_spans import RowSpan
from verify_service.scheduler import Work
from verify_service.sequence import Sequence as Running
from verify_service.width_policy import PlannedWidth


def test_right_proposals_are_all_kept_and_none_asked_beyond_the_cap() -> None:
    """A proposal behind the last token costs a position that the context may not have."""
    link = CountingLink()
    with counting() as running:
        ids, done = running.submit([1, 2], 30, draft=link.plan(draft_tokens=7)).collect()
    assert ids == counted(2, 30)
    stats = done.speculation
    assert (stats.verify_steps, stats.proposed_tokens, stats.accepted_tokens) == (4, 25, 25)
    asked = [s.draft_tokens for r in link.requests for s in r.steps if s.HasField("current")]
    assert asked == [7, 7, 7, 4], "29 tokens after the first: 8 + 8 + 8 + 5"


def test_the_last_token_needs_no_proposal() -> None:
    """With one token to go the draft has nothing to do."""
    link = CountingLink()
    with counting() as running:
        assert running.submit([1], 2, draft=link.plan()).collect()[0] == [2, 3]
        assert running.submit([1], 1, draft=link.plan()).collect()[0] == [2]
    assert not any(step.HasField("current") for r in link.requests for step in r.steps)


@pytest.mark.parametrize("max_rows", [1, 3, 64])
def test_the_draft_gets_every_committed_row_once(max_rows: int) -> None:
    """Chunked prompts and small messages: a row missed or doubled is a wrong context for good."""
    link = CountingLink(max_rows=max_rows)
    prompts = [list(range(100 * i, 100 * i + 3 + 9 * i)) for i in range(4)]
    with counting(prefill_tokens=7) as running:
        answers = [running.submit(p, 40, draft=link.plan(draft_tokens=3)) for p in prompts]
        ended = [answer.collect() for answer in answers]
    for session, prompt, (ids, _) in zip(sorted(link.rows), prompts, ended, strict=True):
        assert ids == counted(prompt[-1], 40)
        rows = link.rows[session]
        assert rows == (prompt + ids)[: len(rows)]
        assert len(rows) < len(prompt) + 40, "the last token has no row"
    if max_rows == 64:
        assert all(done.speculation.plain_steps <= 2 for _, done in ended)
    assert link.open_sessions == set()


def test_a_queued_request_opens_its_session_while_it_waits() -> None:
    """Tickets live for seconds, queues for minutes: the seat would be lost every time."""
    first, second = CountingLink(), CountingLink()
    with counting(max_sequences=1) as running:
        queued: list[Answer] = []

        def crowd(work: Sequence[Work]) -> None:
            if not queued:
                queued.append(running.submit([50], 20, draft=second.plan()))
                queued.append(running.submit([80], 20, draft=second.plan(), name="leaves"))
            if work[0].sequence.num_generated == 13:
                assert len(second.rows) == 2, "both are open"
                running.engine.abort("leaves")

        running.executor.watch = crowd
        assert running.submit([1], 20, draft=first.plan(3)).collect()[0] == counted(1, 20)
        ids, done = queued[0].collect()
        assert (ids, done.speculation.accepted_tokens > 0) == (counted(50, 20), True)
        assert queued[1].collect()[0] == []
    opens, closes, *_ = second.requests
    assert (len(opens.opens), list(closes.closes)) == (2, [3]), "told while they wait"
    assert first.open_sessions == second.open_sessions == set()


class Resting(PlannedWidth):
    """The first steps are drafted, then all are plain."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def draft_tokens(self, running: Sequence[Running]) -> int | None:
        self.steps += 1
        return None if self.steps < 3 else 0


@pytest.mark.parametrize(("quiet_s", "is_told"), [(1000.0, False), (-1.0, True)])
def test_a_resting_draft_hears_of_us_now_and_then(
    quiet_s: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft takes a verify service that says nothing for dead, and ends its sessions."""
    monkeypatch.setattr(drafting, "QUIET_S", quiet_s)
    link = CountingLink()
    with counting(widths=Resting()) as running:
        ids, _ = running.submit([1], 60, draft=link.plan()).collect()
    assert ids == counted(1, 60)
    empty = [r for r in link.requests if not (r.steps or r.opens or r.closes)]
    assert bool(empty) == is_told


def error(reason: pb.SessionErrorReason.ValueType) -> Callable[[pb.SessionResult], None]:
    return lambda result: result.error.CopyFrom(pb.SessionError(reason=reason))


def set_ids(*ids: int) -> Callable[[pb.SessionResult], None]:
    def change(result: pb.SessionResult) -> None:
        del result.proposals.ids[:]
        result.proposals.ids.extend(ids)

    return change


def shift_kv_len(by: int) -> Callable[[pb.SessionResult], None]:
    def change(result: pb.SessionResult) -> None:
        result.proposals.draft_kv_len += by

    return change


WRONG: dict[str, Callable[[pb.SessionResult], None]] = {
    "beyond the vocabulary": set_ids(5, VOCAB),
    "negative": set_ids(-1),
    "more than asked for": set_ids(*range(8)),
    "rows it was not sent": shift_kv_len(1),
    "rows it lost": shift_kv_len(-1),
    "a far position": shift_kv_len(10**12),
    "no answer in it": lambda result: result.ClearField("proposals"),
    "gap": error(pb.SESSION_ERROR_REASON_CONTEXT_GAP),
    "stale": error(pb.SESSION_ERROR_REASON_STALE),
    "unknown session": error(pb.SESSION_ERROR_REASON_UNKNOWN_SESSION),
    "capacity": error(pb.SESSION_ERROR_REASON_CAPACITY),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_ends_that_session_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The draft is not trusted: a bad answer costs its own request's speed, and is told."""

    def spoil(answer: pb.StepResponse) -> None:
        for result in answer.results:
            if result.session == 1 and result.step >= 3:
                WRONG[name](result)

    link = CountingLink(spoil)
    with counting(prefill_tokens=64) as running:
        bad = running.submit([1], 57, draft=link.plan(), name="bad")
        good = running.submit([500], 57, draft=link.plan(), name="good")
        ids, done = bad.collect()
        assert ids == counted(1, 57)
        assert 0 < done.speculation.accepted_tokens < 42
        assert done.speculation.plain_steps > 25
        ids, done = good.collect()
        assert (ids, done.speculation.plain_steps) == (counted(500, 57), 0)
    assert caplog.text.count("request bad goes on without a draft") == 1
    assert link.open_sessions == set()


@pytest.mark.parametrize("name", ["another session", "an older step", "nothing", "twice"])
def test_answers_to_something_else_are_dropped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late, lost and repeated answers must not become somebody's proposals."""

    def spoil(answer: pb.StepResponse) -> None:
        for result in list(answer.results):
            if result.step != 3:
                continue
            if name == "another session":
                result.session = 77
            elif name == "an older step":
                result.step = 2
            elif name == "nothing":
                answer.results.remove(result)
            else:
                answer.results.add().CopyFrom(result)

    link = CountingLink(spoil)
    with counting(prefill_tokens=64) as running:
        if name == "twice":
            assert running.submit([1], 50, draft=link.plan()).collect()[0] == counted(1, 50)
            return
        monkeypatch.setattr(link, "send", forgetful(link))
        assert running.submit([1], 50, draft=link.plan()).collect()[0] == counted(1, 50)


def forgetful(link: CountingLink) -> Callable[[pb.StepRequest, Tensor | None], None]:
    """A draft that takes rows again from where the message says, as after a lost answer."""

    def send(request: pb.StepRequest, rows: Tensor | None) -> None:
        for step in request.steps:
            if step.session in link.rows:
                del link.rows[step.session][step.rows_start :]
        CountingLink.send(link, request, rows)

    return send


def test_a_refused_opening_is_told_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """ "Unknown session" would hide that the ticket had expired."""

    def refuse(answer: pb.StepResponse) -> None:
        for result in list(answer.results):
            error(pb.SESSION_ERROR_REASON_UNKNOWN_SESSION)(result)
            first = answer.results.add(session=result.session)
            error(pb.SESSION_ERROR_REASON_TICKET)(first)
            answer.results.sort(key=lambda r: r.step)

    link = CountingLink(refuse)
    with counting() as running:
        assert running.submit([1], 9, draft=link.plan()).collect()[0] == counted(1, 9)
    assert "REASON_TICKET" in caplog.text
    assert "UNKNOWN_SESSION" not in caplog.text


def test_a_draft_that_is_lost_takes_no_other_with_it() -> None:
    """Requests of two drafts share the target's steps, not the fate of a draft."""

    def die(answer: pb.StepResponse) -> None:
        if answer.results and answer.results[0].step == 3:
            dying.close()
            raise DraftUnavailable("draft service a", "gone")

    dying, living = CountingLink(die), CountingLink()
    with counting(prefill_tokens=64) as running:
        lost = running.submit([1], 60, draft=dying.plan())
        also = running.submit([200], 60, draft=dying.plan())
        other = running.submit([400], 60, draft=living.plan())
        assert lost.collect()[0] == counted(1, 60)
        assert also.collect()[0] == counted(200, 60)
        ids, done = other.collect()
        assert (ids, done.speculation.plain_steps) == (counted(400, 60), 0)
        assert running.submit([7], 9, draft=dying.plan()).collect()[0] == counted(7, 9)
    assert living.open_sessions == set()


def test_a_fault_of_our_own_with_drafts_costs_speed_only() -> None:
    """Rows that cannot be read must end no request, nor leave an answer that is taken for another
    message's: links are replaced."""
    links = [CountingLink(), CountingLink()]
    with counting(prefill_tokens=64, draft_faults=1) as running:
        fail_rows_of(running, token=302)
        answers = [
            running.submit([first], 20, draft=link.plan())
            for first, link in zip((1, 300), links, strict=True)
        ]
        assert [answer.collect()[0] for answer in answers] == [counted(1, 20), counted(300, 20)]
        assert [link.alive for link in links] == [False, False]
        ids, done = running.submit([50], 20, draft=CountingLink().plan()).collect()
        assert (ids, done.speculation.plain_steps) == (counted(50, 20), 0)


def fail_rows_of(running: CountingEngine, token: int) -> None:
    """Makes reading this token's row fail."""
    rows = running.executor.rows

    def failing(spans: list[RowSpan]) -> Tensor:
        if any(token in sequence.tokens[start:end] for sequence, start, end in spans):
            raise RuntimeError("no such row")
        return rows(spans)

    running.drafting._rows_of = failing
