"""Attention of all blocks by FlexAttention: no score is made that nobody sees, none is stored.

The rule is that of training.visibility, as a predicate over query and key numbers: queries are the
slots of all blocks, keys the context and behind it the slots of all blocks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from serving.draft_config import LayerAttention
from training.rows import Anchors, take

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class FlexAttention:
    """On a GPU the layers that call it have to be compiled, which DraftForward sees to."""

    def __init__(self, device: torch.device) -> None:
        make: Any = create_block_mask
        self._make = torch.compile(make, dynamic=False) if device.type == "cuda" else make

    def sees(self, anchors: Anchors, starts: Tensor, size: int, rule: LayerAttention) -> BlockMask:
        """For `anchors` and `starts` [R, S] of a batch, whatever the heads."""
        rows, count = anchors.columns.shape
        length, device = starts.shape[1], str(starts.device)
        rule_of = predicate(anchors, starts, size, rule)
        keys = length + count * size
        found: BlockMask = self._make(rule_of, rows, None, count * size, keys, device=device)
        return found

    def __call__(
        self,
        q: Tensor,
        context: tuple[Tensor, Tensor],
        block: tuple[Tensor, Tensor],
        found: BlockMask,
    ) -> Tensor:
        """As training.attention.block_attention."""
        rows, count, size, heads, dim = q.shape
        k, v = (
            torch.cat([of_context, of_block.flatten(1, 2)], 1).transpose(1, 2)
            for of_context, of_block in zip(context, block, strict=True)
        )
        q = q.flatten(1, 2).transpose(1, 2)
        out = flex_attention(q, k, v, block_mask=found, enable_gqa=True)
        assert isinstance(out, Tensor), "no auxiliary outputs were asked for"
        return out.transpose(1, 2).reshape(rows, count, size, heads * dim)


def predicate(anchors: Anchors, starts: Tensor, size: int, rule: LayerAttention) -> Predicate:
    """(row, head, query, key) -> whether it is seen; numbers behind the last one are allowed."""
    columns, live = anchors.columns, anchors.live
    first = take(starts, columns[..., None])[..., 0]
    length, last = starts.shape[1], columns.shape[1] - 1

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # Tiles are padded with numbers that no block has.
        block, slot = (query // size).clamp(max=last), query % size
        anchor = columns[row, block]
        oldest = first[row, block]
        if rule.window is not None:
            moved = slot + 1 if rule.window_moves else 0
            oldest = torch.maximum(oldest, anchor + moved - rule.window)
        of_context = live[row, block] & (key < anchor) & (key >= oldest) & (key < length)
        own = (key >= length) & ((key - length) // size == query // size)
        if rule.causal:
            own = own & ((key - length) % size <= slot)
        return of_context | own

    return seen
