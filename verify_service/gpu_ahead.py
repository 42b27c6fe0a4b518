"""Steps that start before the host is done with the one before: its work costs nothing.

What a plain step does next is known but for who ends with it. Its ids never leave the device, and
the rows of sequences that did end are dropped: their pages' next owner writes later. After a
drafted step it is known once that is committed, but for the proposals, which are on the device.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from verify_service.early_drafts import Proposals
from verify_service.gpu_step import Answer, Step
from verify_service.scheduler import Work
from verify_service.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Ahead:
    """A step on its way: the row of each sequence, and where it stands there."""

    step: Step
    answer: Answer
    rows: dict[int, int]  # by id() of the sequence
    starts: list[int]
    pages: list[int]
    ids: list[list[int]] = field(default_factory=list)  # of each row, once they are known
    drafted: Callable[[], list[list[int]]] | None = None  # gives them when the draft is done

    def row(self, item: Work) -> int | None:
        """The row that runs this very item; None when there is none."""
        sequence = item.sequence
        row = self.rows.get(id(sequence))
        if self.drafted and not self.ids:
            self.ids = self.drafted()
        if row is None or item.choices != len(item.ids) or not self.ids:
            return None
        page = sequence.pages[item.start // self.step.bucket.page_size]
        same = item.start == self.starts[row] and page == self.pages[row]
        return row if same and item.ids == self.ids[row] else None


def next_step(work: Seq[Work], step: Step) -> Ahead | None:
    """Starts the step after `work`, which `step` runs, where all of it can go on; else None."""
    size = step.bucket.page_size
    places = [(item.start + 1, item.sequence) for item in work]
    if step.bucket.width > 1 or not all(_goes_on(item, size) for item in work):
        return None
    return Ahead(
        step=step,
        answer=step.launch_next(),
        rows={id(sequence): row for row, (_, sequence) in enumerate(places)},
        starts=[start for start, _ in places],
        pages=[sequence.pages[start // size] for start, sequence in places],
    )


def drafted_step(work: Seq[Work], proposals: Proposals, step: Step, answer: Answer) -> Ahead:
    """That of `work`, which was launched as it is but for its proposals."""
    size = step.bucket.page_size

    def drafted() -> list[list[int]]:
        return [
            [item.ids[0], *ids[: len(item.ids) - 1]]
            for item, ids in zip(work, proposals.proposals, strict=True)
        ]

    return Ahead(
        step=step,
        answer=answer,
        rows={id(item.sequence): row for row, item in enumerate(work)},
        starts=[item.start for item in work],
        drafted=drafted,
        pages=[item.sequence.pages[item.start // size] for item in work],
    )


def _goes_on(item: Work, page_size: int) -> bool:
    """Whether a plain step may follow this one, and has a page."""
    sequence: Sequence = item.sequence
    ends = sequence.num_generated + 1 >= sequence.request.max_tokens
    room = (item.start + 1) // page_size < len(sequence.pages)
    plain = sequence.draft is None or sequence.draft.resting
    return len(item.ids) == 1 and plain and not ends and room
