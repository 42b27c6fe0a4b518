"""The frozen target over rectangular batches: features of whole rows, and cached continuation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import PagedAttention
from domino_kernels.linear import Linear
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from serving.checkpoint import Checkpoint
from serving.target_config import TargetConfig, open_target
from training.dense import CachedAttention, PromptAttention, PromptKV, Slots
from verify_service.target import Target

MAX_POSITIONS = 4096


class BatchTarget(Target):
    """verify_service's target, its layers run over [rows, tokens].

    lm_head [vocab, hidden]: the frozen head's weights, the embedding where they are tied. taps: the
    layers whose outputs are returned, in this order.
    """

    checkpoint: Checkpoint
    lm_head: Tensor
    taps: tuple[int, ...]

    @classmethod
    def load(
        cls, path: Path, *, taps: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Raises CheckpointError naming what does not fit."""
        checkpoint, config = open_target(path)
        return cls.read(config, checkpoint, taps=taps, dtype=dtype, device=device)

    @classmethod
    def read(
        cls,
        config: TargetConfig,
        checkpoint: Checkpoint,
        *,
        taps: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """The same of an opened checkpoint."""
        made = cls(
            config, checkpoint, dtype=dtype, device=device, taps=taps, max_positions=MAX_POSITIONS
        )
        table = (config.vocab_size, config.hidden_size)
        made.checkpoint, made.taps = checkpoint, tuple(taps)
        made.lm_head = made.embedding
        if not config.tied_embeddings:
            made.lm_head = checkpoint.tensor(config.lm_head_name, table, dtype).to(device)
        return made

    @property
    def embedding(self) -> Tensor:
        """[vocab, hidden]."""
        return self._embedding

    @property
    def head(self) -> Linear:
        """Normed hidden states -> logits."""
        return self._lm_head

    @property
    def final_norm(self) -> Tensor:
        """[hidden]: weights of the norm before the head."""
        return self._norm

    def normed(self, x: Tensor) -> Tensor:
        """What the head reads: x [..., hidden] behind the final norm."""
        return rms_norm(x, self._norm, self.config.rms_norm_eps)

    @torch.no_grad()
    def prompt(
        self, ids: Tensor, cache: PagedKV | None = None, row: int = 0
    ) -> tuple[Tensor, Tensor]:
        """ids [R, T], padded on the right, from position 0 -> (x [R, T, H], taps [R, T, K * H]).

        Keys and values go to pages row..row + R - 1 of `cache`.
        """
        rows, tokens = ids.shape
        positions = torch.arange(tokens, device=ids.device).expand(rows, -1)
        pages = torch.arange(row, row + rows, device=ids.device)
        return self._run(ids, Slots(pages, positions), PromptKV(cache), PromptAttention(rows))

    @torch.no_grad()
    def extend(
        self, ids: Tensor, positions: Tensor, cache: PagedKV, length: int
    ) -> tuple[Tensor, Tensor]:
        """ids, positions [R, T] of pages 0..R-1, each seeing all positions up to its own.

        length: slots of the cache to look at, above every position.
        """
        pages = torch.arange(len(ids), device=ids.device)
        seen = torch.arange(length, device=ids.device) <= positions[..., None]
        config = self.config
        group = config.num_heads // config.num_kv_heads
        attention = CachedAttention(seen, config.num_kv_heads, group, self.dtype)
        return self._run(ids, Slots(pages, positions), cache, attention)

    def _run(
        self, ids: Tensor, slots: Slots, kv: PagedKV, attention: PagedAttention
    ) -> tuple[Tensor, Tensor]:
        x = F.embedding(ids.flatten(), self._embedding)
        x, outputs = self._decoder.layer_by_layer(x, slots, kv, lambda rule: attention)
        taps = torch.cat(outputs or [x[:, :0]], -1)
        return x.view(*ids.shape, -1), taps.view(*ids.shape, -1)
