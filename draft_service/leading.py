"""The first rank's executor: tells the others what runs, then runs its own part of it."""

from collections.abc import Collection, Sequence

from torch import Tensor

from domino_kernels.paged_kv import PagedKV
from domino_serve.v1 import draft_pb2, rank_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.executor import Part, StepExecutor
from serving.draft_config import DraftConfig
from serving.rank_link import Followers
from serving.tensors import to_message


class LeadingExecutor:
    """An executor of this rank's part of the head, followed by those of all other ranks."""

    def __init__(self, own: StepExecutor, followers: Followers) -> None:
        self._own, self._followers = own, followers

    @property
    def config(self) -> DraftConfig:
        """The draft's."""
        return self._own.config

    @property
    def modes(self) -> Collection[spec.Mode.ValueType]:
        """What this checkpoint can run."""
        return self._own.modes

    @property
    def kv(self) -> PagedKV:
        """This rank's draft KV; every rank has all of it."""
        return self._own.kv

    @property
    def num_graph(self) -> int:
        return self._own.num_graph

    @property
    def num_eager(self) -> int:
        return self._own.num_eager

    def run(
        self, parts: Sequence[Part], rows: Tensor | None, timings: draft_pb2.DraftTimings
    ) -> list[list[int]]:
        """As the rank's own; the others are told first."""
        if parts:
            step = rank_pb2.DraftRankStep(parts=map(_message, parts))
            if rows is not None:
                step.rows.CopyFrom(to_message(rows))
            self._followers.send_bytes(step.SerializeToString())
        return self._own.run(parts, rows, timings)

    def begin(self, parts: Sequence[Part], verified: object, count: int) -> None:
        """Nothing begins early over ranks."""

    def end(self) -> None:
        """Lets the other ranks end."""
        self._followers.end()


def _message(part: Part) -> rank_pb2.DraftRankPart:
    return rank_pb2.DraftRankPart(
        mode=part.mode,
        pages=part.pages,
        start=part.start,
        first_row=part.rows.start,
        num_rows=part.num_rows,
        current=part.current,
        draft_tokens=part.draft_tokens,
    )
