"""The engine loop: admit, run the target, accept, exchange with the draft; one thread, no text.

Called by verify_service.servicer through `submit` and `abort`; calls executor and drafting.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from serving.compute_thread import ComputeThread
from serving.errors import InternalError, PeerUnavailable, ServingError
from serving.log import about
from verify_service import blame
from verify_service.commands import Commands
from verify_service.drafting import Drafting
from verify_service.executor import Executor
from verify_service.halves import Halves
from verify_service.live_requests import LiveRequests, Outcome, tell
from verify_service.scheduler import Scheduler, Work
from verify_service.self_check import FirstProposals
from verify_service.sequence import Chosen, Request, Sequence
from verify_service.synthetic import SyntheticAcceptance
from verify_service.timeline import StepClock, Timeline
from verify_service.width_policy import PlannedWidth, WidthPolicy

LATE_POLL_S = 0.1  # between looks for a late draft's answer while nothing runs

log = logging.getLogger(__name__)


class Engine:
    """Continuous batching of requests; public methods and `commands` are safe from any thread.

    scheduler and drafting belong to the engine's thread: what is done with them goes by a command.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        drafting: Drafting,
        *,
        max_waiting: int,
        widths: WidthPolicy | None = None,
        synthetic: SyntheticAcceptance | None = None,
        overlap: bool = True,
        interval_s: float = 0.0,
    ) -> None:
        """widths: as each request's plan says, without it. overlap: tokens are sent late, those of
        plain steps `interval_s` after the last message at least."""
        self._executor, self.scheduler, self.drafting = executor, scheduler, drafting
        self._widths, self._synthetic = widths or PlannedWidth(), synthetic
        self._overlap, self._halves = overlap, Halves(drafting)
        executor.pretend = synthetic.accepted if synthetic else None
        self._first_proposals = FirstProposals()
        self.timeline = Timeline()
        # Set while nothing runs: pages are free, and so are the sessions at living drafts.
        self.idle = threading.Event()
        self.commands = Commands()
        self._unsent: dict[Sequence, None] = {}
        self._interval_ns = round(interval_s * 1e9)
        self._live = LiveRequests(scheduler.max_sequences + max_waiting)
        self.idle_checks = 0
        self.step_began: float | None = None  # for serving.watchdog
        # Kept, since its frames hold memory that a broken device's driver does not take back: the
        # process would abort instead of ending the requests.
        self.broken_by: Exception | None = None

    def start(
        self,
        on_failure: Callable[[], None] = lambda: None,
        compute: ComputeThread | None = None,
    ) -> None:
        """Starts the loop in `compute`, best the thread that loaded the model; `on_failure` is
        called there when the engine cannot go on."""
        self._on_failure = on_failure
        self._done = (compute or ComputeThread("verify-engine")).start(self._loop)

    def stop(self) -> None:
        """Ends the loop after the current step; requests end with FINISH_REASON_ABORT."""
        self.commands.end()
        self._done.result()

    def submit(self, request: Request) -> Callable[[], None]:
        """Queues a request; raises BadRequest (can never fit), Overloaded (queue full) or Draining.

        The result ends this very request early, never a later one of the same id.
        """
        sequence = request.start()
        self.scheduler.check_fits(sequence)
        # No abort of this request can overtake it.
        self._live.add(sequence, lambda: self.commands.put(lambda: self._enqueue(sequence)))
        return lambda: self.commands.put(lambda: self._finish(sequence, spec.FINISH_REASON_ABORT))

    def abort(self, request_id: str) -> bool:
        """Ends a request early; False when it is not running."""
        sequence = self._live.find(request_id)
        if sequence:
            self.commands.put(lambda: self._finish(sequence, spec.FINISH_REASON_ABORT))
        return sequence is not None

    def is_live(self, sequence: Sequence) -> bool:
        """Whether it waits or runs."""
        return self._live.has(sequence)

    def executed(self) -> tuple[int, int]:
        """Sequences' steps run by a graph, and by single launches, since the start."""
        return self._executor.num_graph, self._executor.num_eager

    def num_live(self) -> int:
        """Requests running and waiting."""
        return len(self._live)

    def _enqueue(self, sequence: Sequence) -> None:
        self.drafting.begin(sequence, sequence.request.draft)
        self.scheduler.waiting.append(sequence)

    def _loop(self) -> None:
        outcome: Outcome = spec.FINISH_REASON_ABORT
        try:
            while self._take_commands():
                self.step_began = time.monotonic()
                self._step()
                self.step_began = None
        except Exception as error:
            self.broken_by = error
            log.exception("the engine cannot go on; all requests end with an error")
            outcome = PeerUnavailable("verify", "its engine cannot go on")  # another one can
            self._on_failure()
        self.step_began = None
        for sequence in self._live.end():
            tell(sequence, outcome)

    def _take_commands(self) -> bool:
        """Runs what other threads asked for; waits while there is nothing to do. False: stop."""
        while True:
            idle = not self.scheduler.waiting and not self.scheduler.running
            if idle:
                self._go_idle()
            wait_s = LATE_POLL_S if self.drafting.is_owed else None
            try:
                if not (command := self.commands.take(wait=idle, timeout_s=wait_s)):
                    return False
                command()
            except queue.Empty:
                if not idle:
                    return True

    def _go_idle(self) -> None:
        """Frees what ended sequences still hold at their drafts, and checks the books."""
        with self._losing_drafts():
            self.drafting.receive()
            self.drafting.send(())
            self.drafting.receive()
        self.scheduler.check_integrity()
        self.idle_checks += 1
        if not self.drafting.is_owed:
            self.idle.set()

    def _step(self) -> None:
        self.idle.clear()
        scheduler, clock = self.scheduler, StepClock(len(self.scheduler.waiting))
        while scheduler.can_admit():
            scheduler.admit()
        with self._losing_drafts():
            self._halves.make_ready(scheduler.running)
        work = scheduler.plan(halves=self._widths.halves)
        clock.planned(work)
        self._executor.use_projection(scheduler.turns.current)
        answer = blame.start(self._executor, work)
        with self._losing_drafts():
            self.drafting.early.begin(work, scheduler.waiting, self._executor.launched)
        self._send_chunks()  # the last step's, while a device runs this one
        chosen = answer()
        took = clock.lap("verify")
        if self._synthetic:
            chosen = self._synthetic.chosen(work, chosen)
        for item, choices in zip(work, chosen, strict=True):
            item.sequence.timings.verify_ns += took
            try:
                self._commit(item, choices)
            except Exception as error:
                self._end_alone(item.sequence, error)
        if not self._overlap:
            self._send_chunks()
        clock.committed(work)
        step = clock.end(self._draft(work, clock))
        self._widths.observe(step)
        self.timeline.add(step)

    def _commit(self, item: Work, chosen: Chosen) -> None:
        sequence = item.sequence
        if not chosen.usable:
            self._executor.clear(sequence.pages)
            raise blame.fault(item, chosen)
        if sequence.proposals and not sequence.request.sampling:
            self._first_proposals.count(sequence.proposals[0] == chosen.ids[0])
        if reason := sequence.commit(item.ids, chosen):
            self._finish(sequence, reason)
        self._unsent[sequence] = None

    def _draft(self, work: list[Work], clock: StepClock) -> list[draft_pb2.DraftTimings]:
        """What was committed out, the next proposals in."""
        with self._losing_drafts():
            draft_tokens = self._widths.draft_tokens(self.scheduler.running)
            if not self._widths.halves:
                self.drafting.early.start_next(self._executor, self.scheduler, draft_tokens)
            members = [*(item.sequence for item in work), *self.scheduler.waiting]
            return self._halves.exchange(
                members,
                draft_tokens,
                clock,
                halves=self._widths.halves,
                wakes=self._widths.wakes,
                meanwhile=self._send_chunks,
            )
        return []

    def _send_chunks(self) -> None:
        for sequence in list(self._unsent):
            if sequence.is_due(self._interval_ns):
                del self._unsent[sequence]
                try:
                    sequence.send()
                except Exception as error:
                    self._end_alone(sequence, error)

    def _end_alone(self, sequence: Sequence, error: Exception) -> None:
        """What goes wrong with one request ends no other."""
        name = sequence.request.request_id
        log.error("request %s ends with an error", name, exc_info=error, extra=about(name))
        self._finish(sequence, error if isinstance(error, ServingError) else InternalError())

    @contextmanager
    def _losing_drafts(self) -> Iterator[None]:
        """What goes wrong with drafts costs speed only."""
        try:
            yield
        except Exception:
            log.exception("drafting failed; all requests go on without a draft")
            self.drafting.abandon([*self.scheduler.running, *self.scheduler.waiting])

    def _finish(self, sequence: Sequence, outcome: Outcome) -> None:
        """Ends a sequence once: frees both sides' memory and sends the last event."""
        if not self._live.remove(sequence):
            return
        self.drafting.end(sequence)
        self.scheduler.remove(sequence)
        tell(sequence, outcome)
