"""The engine loop: admit, run the target, accept, exchange with the draft; one thread, no text.

Called by verify_service.servicer through `submit` and `abort`; calls executor and drafting.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

from domino_serve.v1 import speculation_pb2 as spec
from serving.compute_thread import ComputeThread
from serving.errors import (
    BadRequest,
    InternalError,
    PeerUnavailable,
    ServingError,
)
from serving.log import about
from verify_service.drafting import Drafting
from verify_service.executor import Executor
from verify_service.live_requests import LiveRequests
from verify_service.scheduler import Scheduler, Work
from verify_service.self_check import FirstProposals
from verify_service.sequence import DraftPlan, Request, Sequence
from verify_service.synthetic import SyntheticAcceptance
from verify_service.timeline import StepClock, Timeline
from verify_service.width_policy import PlannedWidth, WidthPolicy

Outcome: TypeAlias = "spec.FinishReason.ValueType | ServingError"

T = TypeVar("T")
JOB_S = 60.0  # a job between steps waits no longer, should the engine have ended
LATE_POLL_S = 0.1  # between looks for a late draft's answer while nothing runs

log = logging.getLogger(__name__)


class Engine:
    """Continuous batching of requests; every public method is safe from any thread."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        drafting: Drafting,
        *,
        max_waiting: int,
        widths: WidthPolicy | None = None,
        synthetic: SyntheticAcceptance | None = None,
    ) -> None:
        """widths: as each request's plan says, without it."""
        self._executor, self.scheduler, self._drafting = executor, scheduler, drafting
        self._widths, self._synthetic = widths or PlannedWidth(), synthetic
        self._first_proposals = FirstProposals()
        self.timeline = Timeline()
        # Set while nothing runs: pages are free, and so are the sessions at living drafts.
        self.idle = threading.Event()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unsent: list[Sequence] = []
        self._live = LiveRequests(scheduler.max_sequences + max_waiting)
        self.idle_checks = 0
        self.step_began: float | None = None  # for verify_service.watchdog

    def start(
        self,
        on_failure: Callable[[], None] = lambda: None,
        compute: ComputeThread | None = None,
    ) -> None:
        """Starts the loop in `compute`, best the thread that loaded the model.

        `on_failure` is called there when the engine cannot go on.
        """
        self._on_failure = on_failure
        self._done = (compute or ComputeThread("verify-engine")).start(self._loop)

    def stop(self) -> None:
        """Ends the loop after the current step; requests end with FINISH_REASON_ABORT."""
        self._commands.put(None)
        self._done.result()

    def submit(self, request: Request) -> Callable[[], None]:
        """Queues a request; raises BadRequest (can never fit), Overloaded (queue full) or Draining.

        The result ends this very request early, never a later one of the same id.
        """
        sequence = request.start()
        pages = self.scheduler.pages_for(sequence.capacity)
        total = self.scheduler.allocator.num_pages
        if pages > total:
            raise BadRequest(
                sequence.sized_by,
                f"prompt and {sequence.sized_by} need {pages} KV pages, the service has {total}; "
                "shorten them or raise --kv-tokens",
            )
        # No abort of this request can overtake it.
        self._live.add(sequence, lambda: self._commands.put(lambda: self._enqueue(sequence)))
        return lambda: self._commands.put(lambda: self._finish(sequence, spec.FINISH_REASON_ABORT))

    def abort(self, request_id: str) -> bool:
        """Ends a request early; False when it is not running."""
        sequence = self._live.find(request_id)
        if sequence:
            self._commands.put(lambda: self._finish(sequence, spec.FINISH_REASON_ABORT))
        return sequence is not None

    def between_steps(self, job: Callable[[], T]) -> T:
        """Runs a job in the engine's thread while no step runs; what it returns or raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        self._commands.put(run)
        return future.result(JOB_S)

    def is_live(self, sequence: Sequence) -> bool:
        """Whether it waits or runs."""
        return self._live.has(sequence)

    def may_redraft(self, sequence: Sequence) -> bool:
        """Whether a request still runs and a draft could take it up."""
        return self.is_live(sequence) and not sequence.has_old_rows

    def forget_rows(self) -> None:
        """The rows so far are of a projection that is replaced; for a job `between_steps`."""
        for sequence in self.scheduler.running:
            sequence.has_old_rows = sequence.kv_len > 0

    def redraft(self, sequence: Sequence, plan: DraftPlan) -> None:
        """Has a sequence drafted for from now on, if it still runs without a draft."""

        def begin() -> None:
            if self.may_redraft(sequence):
                self._drafting.begin(sequence, plan)

        self._commands.put(begin)

    def when_draft_lost(self, want: Callable[[Sequence], None]) -> None:
        """`want` is told of every sequence that is to find a draft; called in the engine's thread.

        Before `start`.
        """
        self._drafting.want = want

    def executed(self) -> tuple[int, int]:
        """Sequences' steps run by a graph, and by single launches, since the start."""
        return self._executor.num_graph, self._executor.num_eager

    def num_live(self) -> int:
        """Requests running and waiting."""
        return len(self._live)

    def _enqueue(self, sequence: Sequence) -> None:
        self._drafting.begin(sequence, sequence.request.draft)
        self.scheduler.waiting.append(sequence)

    def _loop(self) -> None:
        outcome: Outcome = spec.FINISH_REASON_ABORT
        try:
            while self._take_commands():
                self._try_step()
        except Exception:
            log.exception("the engine cannot go on; all requests end with an error")
            outcome = PeerUnavailable("verify", "its engine cannot go on")  # another one can
            self._on_failure()
        for sequence in self._live.end():
            _tell(sequence, outcome)

    def _try_step(self) -> None:
        self.step_began = time.monotonic()
        try:
            self._step()
        except Exception:
            if not self.scheduler.running:
                raise  # nobody to blame, so it would happen again
            log.exception("engine step failed; the running requests end with an error")
            for sequence in list(self.scheduler.running):
                self._finish(sequence, InternalError())
        finally:
            self.step_began = None

    def _take_commands(self) -> bool:
        """Runs what other threads asked for; waits while there is nothing to do. False: stop."""
        while True:
            idle = not self.scheduler.waiting and not self.scheduler.running
            if idle:
                self._go_idle()
            wait_s = LATE_POLL_S if self._drafting.is_owed else None
            try:
                command = self._commands.get(block=idle, timeout=wait_s)
            except queue.Empty:
                if idle:
                    continue
                return True
            if command is None:
                return False
            command()

    def _go_idle(self) -> None:
        """Frees what ended sequences still hold at their drafts, and checks the books."""
        self._drafting.receive()
        self._drafting.send(())
        self._drafting.receive()
        self.scheduler.check_integrity()
        self.idle_checks += 1
        if not self._drafting.is_owed:
            self.idle.set()

    def _step(self) -> None:
        scheduler = self.scheduler
        self.idle.clear()
        clock = StepClock(len(scheduler.waiting))
        while scheduler.can_admit():
            scheduler.admit()
        work = scheduler.plan()
        clock.planned(work)
        answer = self._executor.start(work)
        self._send_chunks()  # the last step's, while a device runs this one
        chosen = answer()
        took = clock.lap("verify")
        if self._synthetic:
            chosen = self._synthetic.chosen(work, chosen)
        for item, choices in zip(work, chosen, strict=True):
            item.sequence.timings.verify_ns += took
            if not choices.usable:
                self._fail(item)
                continue
            if item.sequence.proposals and not item.sequence.request.sampling:
                self._first_proposals.count(item.sequence.proposals[0] == choices.ids[0])
            if reason := item.sequence.commit(item.ids, choices):
                self._finish(item.sequence, reason)
            self._unsent.append(item.sequence)
        clock.committed(work)
        draft_tokens = self._widths.draft_tokens(scheduler.running)
        self._drafting.send([*(item.sequence for item in work), *scheduler.waiting], draft_tokens)
        clock.lap("send")
        if self._drafting.is_owed:  # drafts work meanwhile
            self._send_chunks()
        drafts = self._drafting.receive()
        step = clock.end(drafts)
        self._widths.observe(step)
        self.timeline.add(step)

    def _send_chunks(self) -> None:
        for sequence in self._unsent:
            sequence.send()
        self._unsent.clear()

    def _fail(self, item: Work) -> None:
        """Ends a sequence whose logits are no numbers, and wipes what it has written."""
        end = item.start + len(item.ids)
        error = InternalError(
            f"the target's logits are NaN or infinite at or before position {end - 1}: its weights "
            "are damaged or overflow in this dtype; other requests are unaffected"
        )
        name = item.sequence.request.request_id
        log.error("request %s ends: %s", name, error, extra=about(name))
        self._executor.clear(item.sequence.pages)
        self._finish(item.sequence, error)

    def _finish(self, sequence: Sequence, outcome: Outcome) -> None:
        """Ends a sequence once: frees both sides' memory and sends the last event."""
        if not self._live.remove(sequence):
            return
        self._drafting.end(sequence)
        self.scheduler.remove(sequence)
        _tell(sequence, outcome)


def _tell(sequence: Sequence, outcome: Outcome) -> None:
    """The request's last event."""
    sequence.send()
    last = outcome if isinstance(outcome, ServingError) else sequence.complete(outcome)
    sequence.request.emit(last)
