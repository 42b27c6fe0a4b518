"""A step's exchange with the drafts, which two halves of the sequences may take turns at.

Ping-pong: one half is verified while the draft works for the other. A step takes the sequences that
await no draft, half of all at most; its own answers are taken when the step after it has run.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from domino_serve.v1 import draft_pb2
from verify_service.drafting import Drafting
from verify_service.sequence import Sequence
from verify_service.timeline import StepClock


class Halves:
    """Who awaits a draft while others run; the engine's thread alone uses it."""

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._waiting: list[Sequence] = []

    def make_ready(self, running: Seq[Sequence]) -> None:
        """Takes the answers that were left where a step would have nobody to run else."""
        ready = {s.projection for s in running if not s.awaits_draft}
        if self._waiting and ready != {s.projection for s in running}:
            self._take()

    def exchange(
        self,
        members: Iterable[Sequence],
        draft_tokens: int | None,
        clock: StepClock,
        *,
        halves: bool,
        wakes: bool,
        meanwhile: Callable[[], None],
    ) -> list[draft_pb2.DraftTimings]:
        """Sends what the members committed; their proposals come now, with `halves` later, and
        where a draft `wakes` with the next step's."""
        timings = self._take()
        clock.lap("wait")
        self._drafting.send(members, draft_tokens, only_rows=wakes)
        clock.lap("send")
        if halves:
            self._leave()
            return timings
        if self._drafting.is_at_work:
            meanwhile()
        return timings + self._drafting.receive()

    def _leave(self) -> None:
        self._waiting = self._drafting.asked()
        for sequence in self._waiting:
            sequence.awaits_draft = True

    def _take(self) -> list[draft_pb2.DraftTimings]:
        if not self._waiting:
            return []
        for sequence in self._waiting:
            sequence.awaits_draft = False
        self._waiting = []
        return self._drafting.receive()
