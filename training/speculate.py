"""Greedy draft and verify over many prompts at once, by the services' own model code.

What a draft is worth: tokens emitted per verify step, counted as the services count them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.attention import Batch
from domino_kernels.norm import rms_norm
from domino_kernels.paged_kv import PagedKV
from draft_service.model import DraftModel
from draft_service.rollout import Sampler, make_samplers
from draft_service.tables import Tables
from serving.draft_config import LayerAttention
from serving.draft_format import open_draft
from training.dense import CachedAttention, Slots
from training.errors import TrainingError
from training.generate import BUCKET, padded
from training.target import BatchTarget
from verify_service.projection import FeatureProjection


class BatchDraft(DraftModel):
    """draft_service's backbone over [rows, block]; full attention layers only."""

    def append(self, rows: Tensor, batch: Batch, kv: PagedKV) -> None:
        """Projected rows [n, hidden] -> context KV at the slots of a rectangular batch."""
        self._decoder.append_layer_by_layer(rows, batch, kv)

    def blocks(self, ids: Tensor, committed: Tensor, kv: PagedKV, length: int) -> Tensor:
        """ids [R, B] at positions committed[r].. -> final hidden states [R, B, hidden]."""
        config = self.config
        assert set(config.attention) == {LayerAttention()}, "sliding layers are not covered here"
        size = ids.shape[1]
        positions = committed[:, None] + torch.arange(size, device=ids.device)
        slots = Slots(torch.arange(len(ids), device=ids.device), positions)
        seen = torch.arange(length, device=ids.device) < (committed + size)[:, None, None]
        group = config.num_heads // config.num_kv_heads
        sees = CachedAttention(seen.expand(-1, size, -1), config.num_kv_heads, group, self.dtype)
        x = F.embedding(ids.flatten(), self.embedding)
        x, _ = self._decoder.layer_by_layer(x, slots, kv, lambda rule: sees)
        return rms_norm(x, self._norm, config.rms_norm_eps).view(*ids.shape, -1)


@dataclass(slots=True)
class Answer:
    """tokens: all that was emitted. accepted: proposals kept in each verify step. step_tokens: what
    the steps emitted, which is all but the first token."""

    tokens: list[int]
    accepted: list[int] = field(default_factory=list)

    @property
    def step_tokens(self) -> int:
        return len(self.tokens) - 1


class Speculation:
    """A target and an exported draft; TrainingError unless the target taps the draft's layers."""

    def __init__(self, target: BatchTarget, draft: Path) -> None:
        self.target = target
        checkpoint, self.config = open_draft(draft, target.config)
        if target.taps != self.config.target_layer_ids:
            raise TrainingError(
                f"{draft}: reads layers {self.config.target_layer_ids}, the target was loaded with "
                f"taps {target.taps}"
            )
        self._project = FeatureProjection(
            self.config, checkpoint, dtype=target.dtype, device=target.device
        )
        self._draft = BatchDraft(
            self.config, checkpoint, target.embedding, max_positions=4096, dtype=target.dtype
        )
        tables = Tables(embedding=target.embedding, lm_head=target.head)
        self._samplers = make_samplers(self.config, checkpoint, tables, candidates=0)

    @property
    def has_head(self) -> bool:
        """Whether there is more than the base branch."""
        return self._head is not None

    @property
    def _head(self) -> Sampler | None:
        return self._samplers.domino or self._samplers.dspark

    @torch.no_grad()
    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        width: int,
        new: int,
        stops: set[int],
        base_only: bool = False,
    ) -> list[Answer]:
        """width: positions verified in a step, the current token included."""
        sampler = self._samplers.dflash if base_only else self._head or self._samplers.dflash
        length = -(-(max(map(len, prompts)) + new + 2 * self.config.block_size) // BUCKET) * BUCKET
        caches = self.target.new_kv(len(prompts), length), self._draft.new_kv(len(prompts), length)
        committed, current = self._prompt(prompts, caches)
        answers = [Answer([token]) for token in current.tolist()]
        while live := [i for i, a in enumerate(answers) if _going(a, new, stops)]:
            kept, said = self._round(sampler, committed, current, caches, length, width)
            going = torch.zeros_like(committed, dtype=torch.bool)
            going[torch.tensor(live, device=going.device)] = True
            bonus = said.gather(1, kept[:, None])[:, 0]
            current = torch.where(going, bonus, current)
            committed = torch.where(going, committed + kept + 1, committed)
            for i, count, tokens in zip(
                live, kept[going].tolist(), said[going].tolist(), strict=True
            ):
                answers[i].accepted.append(count)
                for token in tokens[: count + 1]:
                    if _going(answers[i], new, stops):
                        answers[i].tokens.append(token)
        return answers

    def _prompt(
        self, prompts: Sequence[Sequence[int]], caches: tuple[PagedKV, PagedKV]
    ) -> tuple[Tensor, Tensor]:
        """Positions committed and the first token of each row [R]."""
        device = self.target.device
        committed = torch.tensor([len(p) for p in prompts], device=device)
        x, taps = self.target.prompt(padded(prompts, device), caches[0])
        positions = torch.arange(x.shape[1], device=device).expand(len(prompts), -1)
        self._append(taps, positions, caches[1])
        last = x[torch.arange(len(prompts), device=device), committed - 1]
        return committed, self.target.logits(last).argmax(-1)

    def _append(self, taps: Tensor, positions: Tensor, kv: PagedKV) -> None:
        """Context KV of the positions; rows past the committed ones are overwritten later."""
        rows = torch.arange(len(taps), device=taps.device)
        self._draft.append(self._project([taps.flatten(0, 1)]), Slots(rows, positions), kv)

    def _round(
        self,
        sampler: Sampler,
        committed: Tensor,
        current: Tensor,
        caches: tuple[PagedKV, PagedKV],
        length: int,
        width: int,
    ) -> tuple[Tensor, Tensor]:
        """Proposals kept [R], and what the target says at each verified position [R, width]."""
        block = torch.full(
            (len(current), self.config.block_size),
            self.config.mask_token_id,
            device=current.device,
        )
        block[:, 0] = current
        hidden = self._draft.blocks(block, committed, caches[1], length)
        first = 0 if self.config.shift_label else 1
        proposals = sampler.propose(hidden[:, first : first + width - 1], current)
        ids = torch.cat([current[:, None], proposals], 1)
        positions = committed[:, None] + torch.arange(width, device=ids.device)
        x, taps = self.target.extend(ids, positions, caches[0], length)
        said = self.target.logits(x.flatten(0, 1)).argmax(-1).view(ids.shape)
        self._append(taps, positions, caches[1])
        kept = (proposals == said[:, :-1]).long().cumprod(1).sum(1)
        return kept, said


def _going(answer: Answer, new: int, stops: set[int]) -> bool:
    return len(answer.tokens) < new and answer.tokens[-1] not in stops


def acceptance_length(answers: Sequence[Answer]) -> float:
    """All tokens emitted in verify steps over all steps."""
    steps = sum(len(a.accepted) for a in answers)
    return sum(a.step_tokens for a in answers) / steps if steps else 0.0


def accepted_shares(answers: Sequence[Answer], positions: int) -> list[float]:
    """Share of steps that kept at least 1, 2, ... proposals."""
    kept = [count for a in answers for count in a.accepted]
    return [sum(c >= j for c in kept) / max(len(kept), 1) for j in range(1, positions + 1)]


def loops(answer: Answer, window: int = 8) -> bool:
    """Whether a tenth of the answer's runs of `window` tokens was there before."""
    runs = [tuple(answer.tokens[i : i + window]) for i in range(len(answer.tokens) - window + 1)]
    return bool(runs) and 1 - len(set(runs)) / len(runs) >= 0.1
