"""The first rank's executor: runs its own part, and tells the others what it launches."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from torch import Tensor

from domino_serve.v1 import rank_pb2, sampling_pb2
from verify_service.executor import Executor
from verify_service.rank_link import Followers
from verify_service.row_spans import RowSpan
from verify_service.sampling import SamplingParams
from verify_service.scheduler import Work
from verify_service.sequence import Chosen


class LeadingExecutor(Executor):
    """An executor of this rank's part, followed by those of all other ranks."""

    can_run_anew = False  # the others may be in the midst of it

    def __init__(self, own: Executor, followers: Followers) -> None:
        self._own, self._followers = own, followers
        own.tell = self._told

    @property
    def num_graph(self) -> int:  # type: ignore[override]
        return self._own.num_graph

    @property
    def num_eager(self) -> int:  # type: ignore[override]
        return self._own.num_eager

    def start(self, work: Seq[Work]) -> Callable[[], list[Chosen]]:
        return self._own.start(work)

    def run(self, work: Seq[Work]) -> list[Chosen]:
        return self._own.run(work)

    def clear(self, pages: list[int]) -> None:
        self._followers.send(rank_pb2.RankStep(cleared_pages=pages))
        self._own.clear(pages)

    def rows(self, spans: Seq[RowSpan]) -> Tensor:
        return self._own.rows(spans)

    def add_projection(self, fc: Tensor, norm: Tensor) -> int:
        return self._own.add_projection(fc, norm)

    def use_projection(self, number: int) -> None:
        self._own.use_projection(number)

    def project(self, taps: list[Tensor]) -> Tensor:
        return self._own.project(taps)

    def end(self) -> None:
        """Lets the other ranks end."""
        self._followers.end()

    def _told(self, work: Seq[Work] | None) -> None:
        goes_on, items = work is None, map(_message, work or ())
        self._followers.send(rank_pb2.RankStep(work=items, goes_on=goes_on))


def _message(item: Work) -> rank_pb2.RankWork:
    sequence, request = item.sequence, item.sequence.request
    return rank_pb2.RankWork(
        ids=item.ids,
        start=item.start,
        choices=item.choices,
        pages=sequence.pages,
        missing_tokens=max(request.min_tokens - sequence.num_generated, 0),
        stop_ids=request.stop_ids if request.min_tokens else (),
        sampling=_sampling(request.sampling) if request.sampling else None,
        logprobs=sequence.wants_logprobs,
    )


def _sampling(params: SamplingParams) -> sampling_pb2.Sampling:
    return sampling_pb2.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
    )
