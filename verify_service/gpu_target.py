"""The target on a GPU: rows in, the head's input and the draft's projected rows out.

The arithmetic is verify_service.target's, through the kernels of domino_kernels.gpu; every launch
of a pass reads its indices from the device, so that a pass can be one CUDA graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from domino_kernels.gpu.add_parts import add_parts
from domino_kernels.gpu.attention_fixed import Cuts
from domino_kernels.gpu.attention_plan import AttentionPlan
from domino_kernels.gpu.few_rows import GpuLinear
from domino_kernels.gpu.layer import GpuLayer
from domino_kernels.gpu.norm import norm_to_slots
from domino_kernels.gpu.rope_store import rope_store
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from serving.target_config import EMBEDDING, TargetConfig
from verify_service.gpu_exchange import Exchange
from verify_service.gpu_rows import Rows
from verify_service.ranks import ALONE, Ranks
from verify_service.shards import Shard
from verify_service.target import layer_shape
from verify_service.vocabulary import Vocabulary

Read = Callable[[str, tuple[int, ...]], Tensor]  # a tensor by name and shape, on the device


@dataclass(frozen=True, slots=True)
class Projection:
    """The draft's input projection: hidden_norm(fc(taps)), with the draft's epsilon."""

    fc: GpuLinear
    norm: Tensor
    eps: float


class GpuTarget:
    """A dense Llama, Qwen2 or Qwen3 on one GPU, or one rank's part of it.

    deterministic: a row's result has the same bits whatever rows it is run with.
    """

    def __init__(
        self,
        config: TargetConfig,
        read: Read,
        *,
        dtype: torch.dtype,
        device: torch.device,
        taps: Sequence[int] = (),
        projection: Projection | None = None,
        max_positions: int | None = None,
        ranks: Ranks = ALONE,
        deterministic: bool = False,
    ) -> None:
        """`taps`: layers whose outputs `projection` takes, in the draft's order."""
        shard = Shard(config, ranks)
        self.config, self.dtype, self.device = shard.config, dtype, device
        self.projection, self._taps, self._ranks = projection, tuple(taps), ranks
        self.vocabulary = Vocabulary(config.vocab_size, shard.vocab, ranks)
        self._exchange = Exchange(ranks, config.hidden_size, dtype, device)
        table = (config.vocab_size, config.hidden_size)
        self._embedding = head = shard.table(read(EMBEDDING, table))
        if not config.tied_embeddings:
            head = shard.table(read(config.lm_head_name, table))
        self.head = GpuLinear(head, fixed=deterministic)
        self._norm = read("model.norm.weight", (config.hidden_size,))
        positions = min(config.max_context, max_positions or config.max_context)
        rotary = RotaryTable(config.head_dim, config.rope, positions, dtype, device)
        cos, sin = rotary.at(torch.arange(positions, device=device))
        self._angles = cos.squeeze(1), sin.squeeze(1)
        shape = layer_shape(self.config)
        self.layers = [
            GpuLayer(
                shape, shard.layer(_of_layer(read, i), bias_after_sum=True), fixed=deterministic
            )
            for i in range(config.num_layers)
        ]
        self.plan = _plan(self.config, dtype, positions if deterministic else 0)

    def new_kv(self, pages: int, page_size: int) -> PagedKV:
        """An empty KV cache of this model's shape."""
        c = self.config
        return PagedKV(
            layers=c.num_layers,
            pages=pages,
            kv_heads=c.num_kv_heads,
            page_size=page_size,
            head_dim=c.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @property
    def num_taps(self) -> int:
        """Layers whose outputs the projection takes."""
        return len(self._taps)

    def forward(self, rows: Rows, kv: PagedKV, table: Tensor | None) -> Tensor:
        """Normed last hidden states [n, hidden]; stores the rows' KV in their slots.

        With a projection, `table` [slots, hidden] receives the projected rows in theirs.
        """
        normed, taps = self.tapped(rows, kv)
        if table is not None:
            self.project(taps, table, rows.slots)
        return normed

    def tapped(self, rows: Rows, kv: PagedKV) -> tuple[Tensor, Tensor]:
        """As `forward`, with the taps [n, K * hidden] instead of what is projected from them."""
        x, eps = self.vocabulary.embed(rows.ids, self._embedding), self.config.rms_norm_eps
        add_norm = self._exchange.add_norm
        taps = x.new_empty(len(x), len(self._taps), x.shape[1])
        parts = bias = tap = None
        for i, layer in enumerate(self.layers):
            normed = add_norm(x, parts, layer.norm1, eps, bias=bias, tap=tap)
            pages = kv.k[i], kv.v[i]
            qkv = layer.qkv(normed)
            q = rope_store(qkv, layer.heads, self._angles, rows.positions, rows.slots, pages)
            seen = self.plan.attend(q, pages, rows.queries, rows.splits)
            parts = self._of_all(layer.o, seen.view(len(x), -1))
            normed = add_norm(x, parts, layer.norm2, eps, bias=layer.o.bias)
            parts = self._of_all(layer.down, layer.gate_up.gated(normed))
            bias = layer.down.bias
            tap = taps[:, self._taps.index(i)] if i in self._taps else None
        normed = add_norm(x, parts, self._norm, eps, bias=bias, tap=tap)
        return normed, taps.flatten(1)

    def project(self, taps: Tensor, table: Tensor, slots: Tensor) -> None:
        """taps [n, K * hidden] -> rows of `table` [.., hidden] at slots [n] int32, none below 0."""
        if p := self.projection:
            norm_to_slots(p.fc(taps), p.norm, p.eps, table, slots)

    def logits(self, normed: Tensor, out: Tensor | None = None) -> Tensor:
        """Normed hidden states [n, hidden] -> logits [n, vocab], of this rank's ids."""
        return add_parts(self.head(normed, out), self.dtype, out)

    def _of_all(self, linear: GpuLinear, x: Tensor) -> Tensor:
        """A layer that ranks hold parts of: x [n, in] -> parts [S, n, hidden] of its result."""
        if self._ranks.size == 1:
            return linear(x)
        room = self._exchange.room(len(x))
        return self._exchange.gathered(add_parts(linear(x, room), self.dtype, room))


def _of_layer(read: Read, i: int) -> Read:
    return lambda name, shape: read(f"model.layers.{i}.{name}", shape)


def _plan(config: TargetConfig, dtype: torch.dtype, fixed_context: int) -> AttentionPlan:
    return AttentionPlan(
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        element_size=dtype.itemsize,
        cuts=Cuts.of(fixed_context) if fixed_context else None,
    )
