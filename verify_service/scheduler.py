"""Who runs in the next step: every decoding sequence, and prompt chunks within a token budget."""

from collections import deque
from dataclasses import dataclass

from domino_kernels.paged_kv import PageAllocator
from verify_service.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One sequence's positions of a step; the last `choices` of them need the target's choice."""

    sequence: Sequence
    ids: list[int]
    choices: int

    @property
    def start(self) -> int:
        """Position of the first id."""
        return self.sequence.kv_len


class Scheduler:
    """Sequences join and leave at every step; a running one owns all pages it can ever need."""

    def __init__(
        self, *, pages: int, page_size: int, max_sequences: int, prefill_tokens: int
    ) -> None:
        self.allocator = PageAllocator(pages)
        self.page_size = page_size
        self.max_sequences = max_sequences
        self.prefill_tokens = prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def pages_for(self, positions: int) -> int:
        """Pages that hold so many positions."""
        return -(-positions // self.page_size)

    def can_admit(self) -> bool:
        """Whether the first waiting sequence fits now."""
        return (
            bool(self.waiting)
            and len(self.running) < self.max_sequences
            and self.allocator.can_allocate(self.pages_for(self.waiting[0].capacity))
        )

    def admit(self) -> Sequence:
        """Moves the first waiting sequence to the running ones and returns it."""
        sequence = self.waiting.popleft()
        sequence.pages = self.allocator.allocate(self.pages_for(sequence.capacity))
        sequence.timings.queue_ns = sequence.elapsed_ns()
        self.running.append(sequence)
        return sequence

    def plan(self) -> list[Work]:
        """The next step's work; empty when nothing runs."""
        budget = self.prefill_tokens
        work: list[Work] = []
        for sequence in self.running:
            if not sequence.in_prompt:
                ids = sequence.next_ids()
                work.append(Work(sequence=sequence, ids=ids, choices=len(ids)))
            elif budget > 0:
                ids = sequence.tokens[sequence.kv_len : sequence.kv_len + budget]
                budget -= len(ids)
                last = sequence.kv_len + len(ids) == sequence.prompt_len
                work.append(Work(sequence=sequence, ids=ids, choices=int(last)))
        return work

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, waiting or running, and frees its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.allocator.release(sequence.pages)
            sequence.pages = []
        else:
            self.waiting.remove(sequence)

    def check_integrity(self) -> None:
        """Raises AssertionError when pages are lost or held twice."""
        held = [page for sequence in self.running for page in sequence.pages]
        assert len(held) == len(set(held)), "a page is held by two sequences"
        total = self.allocator.num_free + len(held)
        assert total == self.allocator.num_pages, f"{total} of {self.allocator.num_pages} pages"
