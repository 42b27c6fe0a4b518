"""Who runs in the next step: every decoding sequence, and prompt chunks within a token budget."""

from collections import deque
from dataclasses import dataclass

from domino_kernels.paged_kv import PageAllocator
from serving.errors import BadRequest
from verify_service.sequence import Sequence
from verify_service.turns import Turns


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
    """Sequences join and leave at every step; when pages run out, the youngest waits again.

    A preempted sequence keeps its tokens and its draft, and runs its positions anew when it is
    readmitted: row-invariant arithmetic gives the same KV, so its output does not change.
    """

    def __init__(
        self, *, pages: int, page_size: int, max_sequences: int, prefill_tokens: int
    ) -> None:
        self.allocator = PageAllocator(pages)
        self.page_size = page_size
        self.max_sequences = max_sequences
        self.prefill_tokens = prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.turns = Turns()
        self.num_preempted = 0

    def pages_for(self, positions: int) -> int:
        """Pages that hold so many positions."""
        return -(-positions // self.page_size)

    def check_fits(self, sequence: Sequence) -> None:
        """Raises BadRequest when it never will; safe from any thread."""
        pages, total = self.pages_for(sequence.capacity), self.allocator.num_pages
        if pages > total:
            raise BadRequest(
                sequence.sized_by,
                f"prompt and {sequence.sized_by} need {pages} KV pages, the service has {total}; "
                "shorten them or raise --kv-tokens",
            )

    def can_admit(self) -> bool:
        """Whether the first waiting sequence fits, with a page to grow for each that runs."""
        if not self.waiting or len(self.running) >= self.max_sequences:
            return False
        needed = self.pages_for(self.waiting[0].prefill_end) + len(self.running)
        missing = needed - self.allocator.num_free
        return missing <= 0 or missing <= sum(len(self._ahead(s)) for s in self.running)

    def admit(self) -> Sequence:
        """Moves the first waiting sequence to the running ones and returns it.

        It gets all pages it may ever need, in one run, while they are plenty.
        """
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        pages = self.pages_for(sequence.capacity)
        if self.allocator.can_allocate(pages):
            sequence.pages = self.allocator.allocate(pages)
        sequence.timings.queue_ns = sequence.timings.queue_ns or sequence.elapsed_ns()
        return sequence

    def plan(self, *, halves: bool = False) -> list[Work]:
        """The next step's work; empty when nothing runs, or all of it awaits a draft.

        Who decodes comes first, then prompts that end, then those that go on, which share the token
        budget evenly. halves: of no more than half of the sequences.
        """
        members = [s for s in self.turns.take(self.running) if not s.awaits_draft]
        if halves:
            members = members[: -(-len(self.running) // 2)]
        in_prompt = [sequence.in_prefill for sequence in members]
        budget, prompts = self.prefill_tokens, sum(in_prompt)
        work: list[Work] = []
        # Oldest first: preemption takes from the other end.
        for sequence, is_prompt in zip(members, in_prompt, strict=True):
            if is_prompt:
                item = _prompt(sequence, -(-budget // prompts))
                prompts -= 1
            else:
                ids = sequence.next_ids()
                item = Work(sequence=sequence, ids=ids, choices=len(ids))
            if item.ids and self._make_room(sequence, item.start + len(item.ids)):
                work.append(item)
                budget -= len(item.ids) if is_prompt else 0
        return sorted(work, key=lambda item: (item.choices < len(item.ids)) + (not item.choices))

    def run_anew(self, sequence: Sequence) -> None:
        """Its positions run again, as after a preemption, for rows of another projection."""
        if sequence in self.running:
            self._preempt(sequence)

    def _make_room(self, sequence: Sequence, positions: int) -> bool:
        """Whether `sequence` runs and has pages for so many positions; preempts younger ones."""
        while sequence in self.running:
            missing = self.pages_for(positions) - len(sequence.pages)
            if missing <= 0:
                return True
            if self.allocator.can_allocate(missing):
                sequence.pages += self.allocator.allocate(missing)
            elif not self._take_back():
                self._preempt(self.running[-1])
                self.num_preempted += 1
        return False

    def _ahead(self, sequence: Sequence) -> list[int]:
        """Pages a running sequence holds beyond its next step's."""
        if sequence.in_prefill:
            end = sequence.prefill_end
        else:
            end = sequence.kv_len + len(sequence.next_ids())
        return sequence.pages[self.pages_for(end) :]

    def _take_back(self) -> bool:
        """Frees the pages that running sequences hold ahead of need; False when there are none."""
        freed = False
        for sequence in self.running:
            if ahead := self._ahead(sequence):
                self.allocator.release(ahead)
                del sequence.pages[-len(ahead) :]
                freed = True
        return freed

    def _preempt(self, sequence: Sequence) -> None:
        """Takes all pages of a running sequence, which waits first in line to run again."""
        self.running.remove(sequence)
        self.allocator.release(sequence.pages)
        sequence.pages, sequence.proposals, sequence.kv_len = [], [], 0
        self.waiting.appendleft(sequence)

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


def _prompt(sequence: Sequence, share: int) -> Work:
    """What a sequence runs next of its prompt: `share` positions at most."""
    end = min(sequence.kv_len + share, sequence.prefill_end)
    last = end == sequence.prompt_len and not sequence.num_generated
    ids = sequence.tokens[sequence.kv_len : end]
    return Work(sequence=sequence, ids=ids, choices=int(last))
