"""A rank that serves nobody: runs what the first rank tells, until that says it is the end."""

import logging
import signal

from domino_serve.v1 import draft_pb2, rank_pb2
from draft_service.config import DraftServiceConfig
from draft_service.executor import Part, StepExecutor
from draft_service.load import load_part
from serving.rank_link import Leader
from serving.tensors import DTYPES, from_message

log = logging.getLogger(__name__)


def follow(config: DraftServiceConfig) -> int:
    """Loads this rank's part and follows; the exit code."""
    # The first rank drains when asked to end, and needs the others until then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    part = load_part(config)
    assert isinstance(part.link, Leader), "only the first rank has followers"
    log.info("rank %d of %d follows", part.ranks.rank, part.ranks.size)
    run_steps(part.executor, part.link, config)
    return 0


def run_steps(executor: StepExecutor, leader: Leader, config: DraftServiceConfig) -> None:
    """Every pass that is told, to the last."""
    hidden, dtype = executor.config.hidden_size, DTYPES[config.dtype]
    while (message := leader.next_bytes()) is not None:
        step = rank_pb2.DraftRankStep.FromString(message)
        rows = from_message(step.rows, "rows", hidden, dtype) if step.HasField("rows") else None
        executor.run([_part(part) for part in step.parts], rows, draft_pb2.DraftTimings())


def _part(part: rank_pb2.DraftRankPart) -> Part:
    return Part(
        mode=part.mode,
        pages=list(part.pages),
        start=part.start,
        rows=slice(part.first_row, part.first_row + part.num_rows),
        current=part.current if part.HasField("current") else None,
        draft_tokens=part.draft_tokens,
    )
