# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""The Domino greedy rollout on a GPU: block hidden rows in, draft tokens out, one CUDA graph.

Nothing is allocated, copied to the host or concatenated between the first kernel and the last, so
`run` can be captured in a CUDA graph. Reference: `rollout_reference`, the same arithmetic in torch.
"""

import contextlib
import logging
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rollout_certified import LARGEST_BATCH, CertifiedScorer
from .rollout_device import (
    after_previous,
    launch_options,
    matmul_f32,
    pack_key,
)
from .rollout_peers import shared_keys
from .rollout_pool import PoolScorer
from .rollout_resident import LARGEST_BATCH as RESIDENT_BATCH
from .rollout_resident import ResidentRollout, fits, key_slots, machine_of
from .rollout_score import first_token, score_all, write_tokens
from .rollout_shard import VocabShard
from .rollout_state import GruSteps
from .rollout_weights import DominoWeights

Mode = int | Literal["certified"]
log = logging.getLogger(__name__)

MOST_PARTS = 1024  # programs that leave keys for a step, in any mode: one per 2048 tokens, or fewer


@triton.jit
def _begin_kernel(hidden, current, packed, keys, batch, stride_request, stride_row, stride_current,
                  H: tl.constexpr, BLOCK: tl.constexpr,
                  PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    step, request = tl.program_id(0), tl.program_id(1)
    row = step * batch + request
    source = hidden + request.to(tl.int64) * stride_request + step * stride_row
    for start in range(0, H, BLOCK):
        k = start + tl.arange(0, BLOCK)
        tl.store(packed + row * H + k, tl.load(source + k, k < H), k < H)
    if step == 0:
        token = tl.load(current + request * stride_current).to(tl.int32)
        tl.store(keys + request, pack_key(token.to(tl.float32) * 0.0, token))


class DominoRollout:
    """Greedy proposals of up to `max_batch` requests, up to `proposals` each.

    mode 0 scores the full vocabulary at every step; "certified" gives the same proposals from fewer
    bytes; K > 0 scores, from the second token on, the K tokens with the best base logits only.
    Modes 0 and certified run as one launch for few requests, where the GPU and the head allow it;
    otherwise, and where not `resident`, as a few launches a token.
    `input_table` trades V x 3G x 4 bytes of memory for one matrix read a step.
    """

    _offset = 0  # token of the first base logit
    _certified_batch = LARGEST_BATCH

    def __init__(
        self, weights: DominoWeights, lm_head: Tensor, embedding: Tensor, mode: Mode,
        max_batch: int, *, proposals: int = 15, input_table: bool = True,
        certified_batch: int = LARGEST_BATCH, resident: bool = True,
    ) -> None:  # fmt: skip
        """lm_head [V, H], embedding [>= V, H]; raises ValueError naming what does not fit.

        certified_batch: requests up to which "certified" by several launches is not mode 0.
        """
        self._certified_batch = min(certified_batch, LARGEST_BATCH)
        weights.check(lm_head, embedding)
        self._build(weights, lm_head, embedding, mode, max_batch, proposals, input_table)
        if resident and mode in (0, "certified"):
            self._make_resident(weights, full=mode == 0)

    def _build(
        self, weights: DominoWeights, lm_head: Tensor, embedding: Tensor, mode: Mode,
        max_batch: int, proposals: int, input_table: bool, vocab: int | None = None,
    ) -> None:  # fmt: skip
        """vocab: all tokens, where the weights hold only some."""
        rows_of_head, hidden = lm_head.shape
        if max_batch < 1 or proposals < 1:
            raise ValueError(f"max_batch {max_batch}, proposals {proposals}: both must be >= 1")
        if isinstance(mode, int) and mode < 0:
            raise ValueError(f"mode is {mode}: need 0, a pool size K > 0 or 'certified'")
        self.proposals, self._max_batch, self._lm_head = proposals, max_batch, lm_head
        self._weights, self._hidden_size, self._head_rows = weights, hidden, rows_of_head
        scored = len(weights.w2)
        self._from_hidden_w = weights.w1[:, :hidden].contiguous()
        self._steps = GruSteps(
            weights, embedding, max_batch, table=input_table, vocab=vocab or scored
        )
        rows, device = proposals * max_batch, lm_head.device
        self._packed = torch.empty(rows * hidden, dtype=lm_head.dtype, device=device)
        self._base = torch.empty(rows * rows_of_head, dtype=torch.float32, device=device)
        self._from_hidden = torch.empty(rows * weights.bottleneck_dim, device=device)
        self._keys = torch.empty(
            max(MOST_PARTS, scored // 2048) * max_batch, dtype=torch.int64, device=device
        )
        self._ids = torch.empty(rows, dtype=torch.int64, device=device)
        self._side = torch.cuda.Stream(device) if lm_head.is_cuda else None
        self.certified = CertifiedScorer(weights.w2) if mode == "certified" else None
        self.resident: ResidentRollout | None = None
        self._pool: PoolScorer | None = None
        if isinstance(mode, int) and 0 < mode < scored and proposals > 1:
            self._pool = self._make_pool(mode)

    def _make_resident(
        self, weights: DominoWeights, *, full: bool, shard: VocabShard | None = None
    ) -> None:
        """The one launch, where this GPU can run it; weights: with this rank's part of W2."""
        machine, table = machine_of(weights.w2.device), self._steps.table
        if machine is None:
            return
        tokens = shard.least if shard else len(weights.w2)
        without = "its GRU has no input table" if table is None else None
        without = without or fits(weights, tokens, machine.ctas)
        if without or table is None:
            log.warning("the Domino rollout takes several launches a token: %s", without)
            return
        batch, peers = min(self._max_batch, RESIDENT_BATCH), None
        if shard:
            size = key_slots(shard.size, machine.ctas, self.proposals, batch)
            peers = shared_keys(size, shard.group, weights.w2.device)
            if peers is None:
                return
        self.resident = ResidentRollout(
            weights, table, self._steps.stacked, machine, full=full, proposals=self.proposals,
            max_batch=batch, first=self._offset, peers=peers,
        )  # fmt: skip
        if self._certified_batch <= RESIDENT_BATCH:
            self.certified = None  # never used

    def _make_pool(self, size: int) -> PoolScorer:
        return PoolScorer(self._weights.w2, size, self.proposals, self._max_batch)

    def run(self, hidden: Tensor, current: Tensor) -> Tensor:
        """hidden [B, n, H] (row j predicts proposal j), current [B] integers -> ids [B, n] int64.

        The result is a buffer the next run overwrites. Raises ValueError on other shapes.
        """
        batch, n = self._check(hidden, current)
        keys, ids = self._keys, self._ids[: n * batch].view(batch, n)
        base, from_hidden = self._project(hidden, current, ids)
        if self._in_one_launch(batch):
            assert self.resident is not None
            self.resident.run(base, from_hidden, keys, ids)
            return ids
        parts = self._first(base[0], n)
        if self._pool is not None and n > 1:
            parts = self._pool.select(base[1:], keys, parts)
        for j in range(1, n):
            state = self._steps.run(j, keys, parts, from_hidden[j], ids, early=self._early(j))
            parts = self._score(j, state, base[j])
        write_tokens(keys, parts, ids[:, n - 1], early=self._early(n))
        return ids

    def _in_one_launch(self, batch: int) -> bool:
        return self.resident is not None and batch <= RESIDENT_BATCH

    def _early(self, step: int) -> bool:
        """Whether the kernel before the step's first is the only one that it waits for."""
        return True

    def _first(self, base: Tensor, n: int) -> int:
        """Keys of the first of n tokens; returns their parts."""
        return first_token(base, self._keys, self._offset, early=False)

    def _check(self, hidden: Tensor, current: Tensor) -> tuple[int, int]:
        batch, n, width = hidden.shape
        fits = 1 <= batch <= self._max_batch and 1 <= n <= self.proposals
        if width != self._hidden_size or not fits:
            raise ValueError(
                f"hidden is {tuple(hidden.shape)}, needs "
                f"[1..{self._max_batch}, 1..{self.proposals}, {self._hidden_size}]"
            )
        if hidden.dtype != self._lm_head.dtype or hidden.stride(2) != 1:
            raise ValueError(
                f"hidden is {hidden.dtype}, needs contiguous {self._lm_head.dtype} rows"
            )
        if current.shape != (batch,):
            raise ValueError(f"current is {tuple(current.shape)}, needs [{batch}]")
        return batch, n

    def _project(self, hidden: Tensor, current: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Packs the rows step-major; base logits [n, B, V] and W1's hidden part [n, B, E].

        Beside them: the state behind the current tokens, or what one launch needs.
        """
        batch, n, width = hidden.shape
        packed = self._packed[: n * batch * width].view(n * batch, width)
        _begin_kernel[(n, batch)](
            hidden, current, packed, self._keys, batch, hidden.stride(0), hidden.stride(1),
            current.stride(0), H=width,
            BLOCK=min(4096, triton.next_power_of_2(width)), **launch_options(hidden),
        )  # fmt: skip
        bottleneck = self._weights.bottleneck_dim
        from_hidden = self._from_hidden[: n * batch * bottleneck].view(n * batch, bottleneck)
        with self._beside():
            matmul_f32(packed, self._from_hidden_w, from_hidden)
            if self._in_one_launch(batch):
                assert self.resident is not None
                self.resident.reset(batch, n)
            else:
                self._steps.run(0, self._keys, 1, from_hidden[:batch], ids)
        base = self._base_logits(packed)
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        return base.view(n, batch, -1), from_hidden.view(n, batch, -1)

    def _base_logits(self, packed: Tensor) -> Tensor:
        rows = self._head_rows
        base = self._base[: len(packed) * rows].view(len(packed), rows)
        matmul_f32(packed, self._lm_head, base)
        return base

    def _beside(self) -> contextlib.AbstractContextManager[object]:
        """Work that hides beside the base projection: a second stream, forked here."""
        if self._side is None:
            return contextlib.nullcontext()
        self._side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._side)

    def _score(self, j: int, state: Tensor, base: Tensor) -> int:
        w2, backward = self._weights.w2, j % 2 == 0
        if self._pool is not None:
            return self._pool.score(j - 1, state, self._keys)
        if self.certified is not None and len(state) <= self._certified_batch:
            score = self.certified.score
            return score(state, base, self._keys, backward=backward, first=self._offset)
        return score_all(state, w2, base, self._keys, backward=backward, first=self._offset)
