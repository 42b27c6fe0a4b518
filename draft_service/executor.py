"""One pass of the draft: appended rows and current tokens in, proposals out; owns the draft KV."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from domino_kernels.attention import Batch, Span
from domino_kernels.paged_kv import PagedKV
from domino_serve.v1 import draft_pb2
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.model import DraftModel
from draft_service.rollout import Sampler, Samplers
from serving.draft_config import DraftConfig

if TYPE_CHECKING:
    from domino_kernels.gpu.hand_over import Verified  # needs triton, which a CPU has no use for


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One session's part of a pass.

    start: positions that have context KV; rows: its new ones among the pass's rows, stored from
    there on. current: the token to draft `draft_tokens` proposals from; None only appends.
    """

    mode: spec.Mode.ValueType
    pages: Sequence[int]
    start: int
    rows: slice
    current: int | None
    draft_tokens: int

    @classmethod
    def waiting(
        cls, mode: spec.Mode.ValueType, pages: Sequence[int], start: int, draft_tokens: int
    ) -> Self:
        """Of a session whose new rows and current token the host does not know yet."""
        return cls(
            mode=mode, pages=pages, start=start, rows=slice(0, 0), current=None,
            draft_tokens=draft_tokens,
        )  # fmt: skip

    @property
    def num_rows(self) -> int:
        """New rows."""
        return self.rows.stop - self.rows.start  # type: ignore[no-any-return]

    @property
    def end(self) -> int:
        """Positions that have context KV after the pass."""
        return self.start + self.num_rows


class Begun(Protocol):
    """A step that follows a verify step on the same device; draft_service.gpu_begin's."""

    @property
    def ids(self) -> Tensor: ...
    @property
    def taken(self) -> list[tuple[int, int]]: ...
    @property
    def proposals(self) -> list[list[int]]: ...


class StepExecutor(Protocol):
    """What runs the passes of a draft on its device; owns its draft KV.

    num_graph, num_eager: parts run by a CUDA graph, and by single launches.
    """

    @property
    def config(self) -> DraftConfig: ...
    @property
    def modes(self) -> Collection[spec.Mode.ValueType]: ...
    @property
    def kv(self) -> PagedKV: ...
    @property
    def num_graph(self) -> int: ...
    @property
    def num_eager(self) -> int: ...
    def run(
        self, parts: Sequence[Part], rows: Tensor | None, timings: draft_pb2.DraftTimings
    ) -> list[list[int]]: ...
    def begin(self, parts: Sequence[Part], verified: "Verified", count: int) -> Begun | None: ...


class Network(Protocol):
    """A draft's weights on their device, before they have draft KV to run with."""

    def new_kv(self, pages: int, page_size: int) -> PagedKV: ...
    def executor(self, kv: PagedKV) -> StepExecutor: ...


@dataclass(frozen=True, slots=True)
class CpuNetwork:
    """Weights for `Executor`."""

    model: DraftModel
    samplers: Samplers

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty draft KV cache."""
        return self.model.new_kv(pages, page_size)

    def executor(self, kv: PagedKV) -> "Executor":
        """Runs these weights; what the pages hold must be theirs, or void."""
        return Executor(self.model, self.samplers, kv)


class Executor:
    """The draft network and its samplers through torch, or the kernels of domino_kernels.native."""

    def __init__(
        self,
        model: DraftModel,
        samplers: Samplers,
        kv: PagedKV,
    ) -> None:
        self._model, self._kv = model, kv
        found: dict[spec.Mode.ValueType, Sampler | None] = {
            spec.MODE_DFLASH: samplers.dflash,
            spec.MODE_DOMINO: samplers.domino,
            spec.MODE_DSPARK: samplers.dspark,
        }
        self._samplers = {mode: sampler for mode, sampler in found.items() if sampler}
        self.num_graph = self.num_eager = 0

    @property
    def kv(self) -> PagedKV:
        """Draft KV of every session."""
        return self._kv

    @property
    def config(self) -> DraftConfig:
        """The draft's."""
        return self._model.config

    @property
    def modes(self) -> Collection[spec.Mode.ValueType]:
        """What this checkpoint can run."""
        return self._samplers.keys()

    @torch.inference_mode()
    def run(
        self, parts: Sequence[Part], rows: Tensor | None, timings: draft_pb2.DraftTimings
    ) -> list[list[int]]:
        """rows [n, hidden] -> each part's proposals: at least as many as it asks for or, of a block
        that ended early, fewer."""
        began = time.monotonic_ns()
        self.num_eager += len(parts)
        appending = [part for part in parts if part.num_rows]
        if rows is not None and appending:
            spans = [Span(start=p.start, count=p.num_rows, pages=p.pages) for p in appending]
            taken = torch.cat([rows[p.rows] for p in appending]).to(self._model.device)
            self._model.append(taken, self._batch(spans), self._kv)
        timings.append_ns = time.monotonic_ns() - began
        proposals: list[list[int]] = [[] for _ in parts]
        for mode, sampler in self._samplers.items():
            asking = [i for i, p in enumerate(parts) if p.current is not None and p.mode == mode]
            if asking:
                found = self._propose([parts[i] for i in asking], sampler, timings)
                for i, ids in zip(asking, found, strict=True):
                    proposals[i] = ids
        return proposals

    def begin(self, parts: Sequence[Part], verified: "Verified", count: int) -> None:
        """Nothing begins early on a CPU."""

    def _propose(
        self,
        asking: Sequence[Part],
        sampler: Sampler,
        timings: draft_pb2.DraftTimings,
    ) -> list[list[int]]:
        """Runs the blocks [current, mask, ...] and the rollout; one list of ids per part."""
        config = self._model.config
        began = time.monotonic_ns()
        spans = [Span(start=p.end, count=config.block_size, pages=p.pages) for p in asking]
        current = torch.tensor([p.current for p in asking], device=self._model.device)
        blocks = current.new_full((len(asking), config.block_size), config.mask_token_id)
        blocks[:, 0] = current
        hidden = self._model.forward(blocks.flatten(), self._batch(spans), self._kv)
        hidden = hidden.view(len(asking), config.block_size, -1)
        rolled = time.monotonic_ns()
        timings.backbone_ns += rolled - began
        first = 0 if config.shift_label else 1
        count = max(p.draft_tokens for p in asking)
        ids: list[list[int]] = sampler.propose(hidden[:, first : first + count], current).tolist()
        timings.rollout_ns += time.monotonic_ns() - rolled
        return [[i for i in block if i >= 0] for block in ids]

    def _batch(self, spans: list[Span]) -> Batch:
        return Batch(spans, self._kv.page_size, self._model.device)
