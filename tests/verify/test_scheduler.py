"""The scheduler under any traffic: pages, order of admission, prompt budget, whole prompts."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from verify_service.scheduler import Scheduler
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
        budget = PREFILL_TOKENS
        planned = {id(work.sequence): work for work in self.scheduler.plan()}
        for sequence in list(self.scheduler.running):
            work = planned.pop(id(sequence), None)
            if work is None:
                assert sequence.in_prompt
                assert budget == 0, "only a spent budget keeps a prompt waiting"
                continue
            assert work.start == sequence.kv_len
            if sequence.in_prompt:
                end = min(sequence.kv_len + budget, sequence.prompt_len)
                assert work.ids == list(range(sequence.kv_len, end))
                assert work.choices == (end == sequence.prompt_len)
                budget -= len(work.ids)
            else:
                assert work.ids == [sequence.tokens[-1], *sequence.proposals]
                assert work.choices == len(work.ids)
            assert work.start + len(work.ids) <= len(sequence.pages) * PAGE_SIZE
            self.commit(sequence, work.ids, work.choices, accepted)
        assert not planned, "work for a sequence that does not run"
        self.check()

    def admit(self) -> None:
        while self.scheduler.can_admit():
            self.admitted.append(self.scheduler.admit())
        if self.scheduler.waiting and len(self.scheduler.running) < MAX_SEQUENCES:
            first = self.scheduler.waiting[0]
            assert pages_of(first) > self.scheduler.allocator.num_free, "it would have fitted"

    def commit(self, sequence: Sequence, ids: list[int], choices: int, accepted: int) -> None:
        agreed = [*ids[1:], 7][: accepted + 1] if choices > 1 else [7]
        chosen = Chosen(ids=[*agreed, *[8] * (choices - len(agreed))] if choices else [])
        if sequence.commit(ids, chosen):
            self.end(sequence)
            return
        left = sequence.request.max_tokens - sequence.num_generated
        sequence.proposals = [] if sequence.in_prompt else [7] * min(6, left - 1)

    def check(self) -> None:
        self.scheduler.check_integrity()
        held = [page for sequence in self.scheduler.running for page in sequence.pages]
        assert len(set(held)) == len(held) == sum(map(pages_of, self.scheduler.running))
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
