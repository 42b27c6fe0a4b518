"""A rank that serves nobody: runs what the first rank tells, until that says it is the end."""

import logging
import signal

from domino_serve.v1 import rank_pb2
from verify_service.config import VerifyConfig
from verify_service.executor import Executor
from verify_service.load_executor import load_part
from verify_service.rank_link import Leader
from verify_service.sampling import SamplingParams
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence

log = logging.getLogger(__name__)


class Followed(Sequence):
    """As much of another rank's sequence as a pass needs."""

    __slots__ = ("_logprobs",)

    def __init__(self, work: rank_pb2.RankWork) -> None:
        request = Request(
            request_id="followed",
            prompt_ids=[],
            max_tokens=1,
            stop_ids=frozenset(work.stop_ids),
            emit=lambda event: None,
            sampling=SamplingParams.of(work.sampling) if work.HasField("sampling") else None,
            min_tokens=work.missing_tokens,
        )
        Sequence.__init__(self, request, pages=list(work.pages), kv_len=work.start)
        self._logprobs = work.logprobs

    @property
    def wants_logprobs(self) -> bool:
        return self._logprobs


def follow(config: VerifyConfig) -> int:
    """Loads this rank's part and follows; the exit code."""
    # The first rank drains when asked to end, and needs the others until then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    part = load_part(config)
    assert isinstance(part.link, Leader), "only the first rank has followers"
    log.info("rank %d of %d follows", part.ranks.rank, part.ranks.size)
    run_steps(part.executor, part.link)
    return 0


def run_steps(executor: Executor, leader: Leader) -> None:
    """Every step that is told, to the last."""
    while not (step := leader.next()).end:
        if step.cleared_pages:
            executor.clear(list(step.cleared_pages))
        if step.work:
            executor.run([_work(work) for work in step.work])
        if step.goes_on:
            executor.go_on()


def _work(work: rank_pb2.RankWork) -> Work:
    return Work(sequence=Followed(work), ids=list(work.ids), choices=work.choices)
