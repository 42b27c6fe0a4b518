"""The scheduler under any traffic: pages, order of admission, prompt budget, whole prompts."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from verify_service.scheduler import Scheduler, Work
from verify_service.sequence import Chosen, Request, Sequence

PAGES, PAGE_SIZE, MAX_SEQUENCES, PREFILL_TOKENS = 12, 4, 3, 5


def new_sequence(name: int, prompt: int, max_tokens: int) -> Sequence:
    return Sequence(
        Request(
            request_id=str(name),
            prompt_ids=list(range(prompt)),
            max_tokens=max_tokens,
            stop_ids=frozenset(),
            emit=lambda event: None,
        )
    )


def pages_of(sequence: Sequence) -> int:
    positions = len(sequence.request.prompt_ids) + sequence.request.max_tokens
    return positions // PAGE_SIZE + (positions % PAGE_SIZE > 0)


@dataclass
class Traffic:
    """Drives a scheduler as the engine does, and checks it after every move."""

    scheduler: Scheduler = field(
        default_factory=lambda: Scheduler(
            pages=PAGES,
            page_size=PAGE_SIZE,
            max_sequences=MAX_SEQUENCES,
            prefill_tokens=PREFILL_TOKENS,
        )
    )
    submitted: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    gone: list[Sequence] = field(default_factory=list)

    def submit(self, prompt: int, max_tokens: int) -> None:
        sequence = new_sequence(len(self.submitted), prompt, max_tokens)
        if self.scheduler.pages_for(sequence.capacity) <= PAGES:
            self.submitted.append(sequence)
            self.scheduler.waiting.append(sequence)

    def leave(self, index: int) -> None:
        """A client goes away, whether it waits or runs."""
        there = [s for s in self.submitted if s not in self.gone]
        if there:
            self.end(there[index % len(there)])

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.gone.append(sequence)

    def step(self, accepted: int) -> None:
        """One engine step in which the target agrees with `accepted` proposals of everybody."""
        self.admit()
        before = list(self.scheduler.running)
        work = self.scheduler.plan()
        running = self.scheduler.running
        assert running == before[: len(running)], "the youngest are preempted, nobody else"
        prefilled = sum(len(w.ids) for w in work if w.sequence.in_prefill)
        assert prefilled <= PREFILL_TOKENS
        assert [s for s in running if not s.in_prefill] == [
            w.sequence for w in work if not w.sequence.in_prefill
        ], "decoding never waits for a prompt"
        for item in work:
            self.check_work(item)
        for item in work:
            self.commit(item.sequence, item.ids, item.choices, accepted)
        self.check()

    def check_work(self, work: Work) -> None:
        sequence = work.sequence
        assert sequence in self.scheduler.running
        end = work.start + len(work.ids)
        if sequence.in_prefill:
            assert work.ids == sequence.tokens[work.start : end]
            fresh = not sequence.num_generated
            assert work.choices == (fresh and end == len(sequence.request.prompt_ids))
        else:
            assert work.start == len(sequence.tokens) - 1, "only current and the draft lack KV"
            assert work.ids == [sequence.tokens[-1], *sequence.proposals]
            assert work.choices == len(work.ids)
        assert end <= len(sequence.pages) * PAGE_SIZE

    def admit(self) -> None:
        while self.scheduler.can_admit():
            sequence = self.scheduler.admit()
            if sequence not in self.admitted:
                self.admitted.append(sequence)

    def commit(self, sequence: Sequence, ids: list[int], choices: int, accepted: int) -> None:
        agreed = [*ids[1:], 7][: accepted + 1] if choices > 1 else [7]
        chosen = Chosen(ids=[*agreed, *[8] * (choices - len(agreed))] if choices else [])
        kv_len = sequence.kv_len
        reason = sequence.commit(ids, chosen)
        sequence.send()
        assert sequence.kv_len > kv_len, "every step gets on"
        if reason:
            self.end(sequence)
            return
        left = sequence.request.max_tokens - sequence.num_generated
        sequence.proposals = [] if sequence.in_prefill else [7] * min(6, left - 1)

    def check(self) -> None:
        self.scheduler.check_integrity()
        held = [page for sequence in self.scheduler.running for page in sequence.pages]
        assert len(set(held)) == len(held)
        assert all(len(s.pages) <= pages_of(s) for s in self.scheduler.running)
        assert not any(sequence.pages for sequence in self.scheduler.waiting)
        assert self.scheduler.allocator.num_free == PAGES - len(held)
        assert not any(sequence.pages for sequence in self.gone)
        came = [s for s in self.submitted if s in self.admitted]
        assert self.admitted == came, "first come, first served"


moves = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 30), st.integers(1, 25)),
    st.tuples(st.just("step"), st.integers(0, 6)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(moves, max_size=40))
def test_any_traffic(moves: list[tuple[str, int, int] | tuple[str, int]]) -> None:
    """A page lost or shared, a prompt token skipped, a queue that is jumped or stands still."""
    traffic = Traffic()
    for name, *values in moves:
        getattr(traffic, name)(*values)
        traffic.check()
    for _ in range(1000):
        if not traffic.scheduler.waiting and not traffic.scheduler.running:
            break
        traffic.step(accepted=2)
    assert len(traffic.gone) == len(traffic.submitted), "everybody gets to the end"
    assert traffic.scheduler.allocator.num_free == PAGES


def test_prompts_share_the_budget() -> None:
    """A long prompt that takes the whole budget keeps every short one behind it waiting."""
    scheduler = Scheduler(pages=64, page_size=4, max_sequences=4, prefill_tokens=12)
    for name, prompt in enumerate([100, 4, 5]):
        scheduler.waiting.append(new_sequence(name, prompt, 4))
        scheduler.admit()
    assert [len(work.ids) for work in scheduler.plan()] == [4, 4, 4]


def test_pages_held_ahead_are_given_up_before_anybody_is_preempted() -> None:
    """Reserving for the longest possible answer must not keep out requests that fit now."""
    scheduler = Scheduler(pages=10, page_size=4, max_sequences=4, prefill_tokens=64)
    scheduler.waiting += [new_sequence(0, 4, 32), new_sequence(1, 8, 4)]
    scheduler.admit()
    assert scheduler.allocator.num_free == 1
    assert scheduler.can_admit()
    scheduler.admit()
    assert [len(work.ids) for work in scheduler.plan()] == [4, 8]
    assert scheduler.num_preempted == 0
