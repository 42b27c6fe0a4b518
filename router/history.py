"""What a request has received so far, from however many verify groups it takes: the next group
goes on behind it, and the client sees one run.
"""

import time

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2 as pb
from router.admission import Work
from serving.statistics import add_statistics, count_step


class History:
    """Committed ids, statistics and times of a request over all its runs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.ids: list[int] = []
        self.runs = 0
        self._began_ns = time.monotonic_ns()
        # Of runs that broke off; plain unless one of them was not.
        self._before = spec.SpeculationStats(mode=spec.MODE_AR, width=1)
        self._now = spec.SpeculationStats()  # of this run
        self._waited_ns = 0  # before this run began
        self._first_token_ns = 0
        self._seat: pb.DraftSeat | None = None

    def next_run(
        self, verify_id: str, seat: pb.DraftSeat | None
    ) -> pb.VerifyServiceGenerateRequest:
        """The request for what is left; a broken run's statistics are kept."""
        self.runs += 1
        self._waited_ns = time.monotonic_ns() - self._began_ns
        add_statistics(self._before, self._now)
        self._now = spec.SpeculationStats(mode=spec.MODE_AR, width=1)
        self._seat = seat
        work, done = self.work, len(self.ids)
        return pb.VerifyServiceGenerateRequest(
            request_id=verify_id,
            prompt_ids=[*work.prompt_ids, *self.ids],
            max_tokens=work.max_tokens - done,
            stop_token_ids=sorted(work.stop_token_ids),
            draft=seat,
            sampling=work.sampling,
            min_tokens=max(work.min_tokens - done, 0),
            chunk_stats=bool(work.stop),
        )

    def add(self, event: pb.VerifyServiceGenerateResponse) -> None:
        """Takes an event in and makes it, in place, what one unbroken run would have sent."""
        if event.HasField("chunk"):
            chunk = event.chunk
            self._first_token_ns = self._first_token_ns or self._elapsed_ns()
            self.ids += chunk.token_ids
            if chunk.HasField("step"):
                self._count(chunk)
            if self.runs > 1 and chunk.HasField("speculation"):
                self._join(chunk)
        elif self.runs > 1:
            event.complete.usage.CopyFrom(self._usage())
            self._join(event.complete)

    def end(self) -> pb.VerifyServiceGenerateResponse | None:
        """The last event when the tokens received are all there will be, though none said so."""
        if self.ids and self.ids[-1] in self.work.stop_token_ids:
            return self.ended(spec.FINISH_REASON_STOP)
        if len(self.ids) >= self.work.max_tokens:
            return self.ended(spec.FINISH_REASON_LENGTH)
        return None

    def ended(self, reason: spec.FinishReason.ValueType) -> pb.VerifyServiceGenerateResponse:
        """A last event of our own, between two runs."""
        add_statistics(self._before, self._now)
        self._now = spec.SpeculationStats()
        total_ns = self._elapsed_ns()
        end = pb.VerifyComplete(
            finish_reason=reason,
            stop_token_id=self.ids[-1] if reason == spec.FINISH_REASON_STOP else None,
            usage=self._usage(),
            speculation=self._before,
            timings=spec.RequestTimings(first_token_ns=self._first_token_ns, total_ns=total_ns),
        )
        return pb.VerifyServiceGenerateResponse(complete=end)

    def _count(self, chunk: pb.VerifyChunk) -> None:
        count_step(self._now, chunk.step, len(chunk.token_ids))
        if self._seat and chunk.step.proposed_tokens:
            self._now.mode, self._now.width = self._seat.mode, self._seat.draft_tokens + 1

    def _usage(self) -> spec.Usage:
        prompt = len(self.work.prompt_ids)
        return spec.Usage(prompt_tokens=prompt, completion_tokens=len(self.ids))

    def _join(self, part: pb.VerifyChunk | pb.VerifyComplete) -> None:
        """Adds the earlier runs' statistics and times; what is only verify's to know is left."""
        whole = spec.SpeculationStats()
        whole.CopyFrom(self._before)
        add_statistics(whole, part.speculation)
        part.speculation.CopyFrom(whole)
        part.timings.total_ns += self._waited_ns
        part.timings.first_token_ns = self._first_token_ns

    def _elapsed_ns(self) -> int:
        return time.monotonic_ns() - self._began_ns
