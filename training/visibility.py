"""What the slots of a block see: the context strictly before its anchor, and its own block.

Blocks are told apart by their slot in the row, never by their anchor: two may overlap. The feature
at the anchor is not there when serving, so it is hidden here too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.draft_config import LayerAttention
from training.rows import Anchors, take


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """context [R, N, B or 1, S] bool and block [B, B] bool (query, key), of one kind of layer.

    Dead slots see their own block, so that no softmax is empty.
    """

    context: Tensor
    block: Tensor


def visible(anchors: Anchors, starts: Tensor, block_size: int, rule: LayerAttention) -> Visible:
    """starts [R, S]: where each column's document begins."""
    column = torch.arange(starts.shape[1], device=starts.device)
    anchor = anchors.columns[..., None]
    first = take(starts, anchor)
    seen = anchors.live[..., None] & (column < anchor) & (column >= first)
    slot = torch.arange(block_size, device=starts.device)
    block = slot[None, :] <= slot[:, None] if rule.causal else slot[:, None] == slot[:, None]
    block = block.expand(block_size, block_size)
    if rule.window is None:
        return Visible(context=seen[:, :, None], block=block)
    moved = slot + 1 if rule.window_moves else torch.zeros_like(slot)
    oldest = (anchor + moved - rule.window)[..., None]
    return Visible(context=seen[:, :, None] & (column >= oldest), block=block)


def dense_mask(found: Visible) -> Tensor:
    """[R, N * B, S + N * B] bool: columns are the context, then all blocks."""
    block_size = len(found.block)
    rows, count, _, length = found.context.shape
    context = found.context.expand(rows, count, block_size, length).flatten(1, 2)
    own = torch.kron(torch.eye(count, device=context.device), found.block.float()).bool()
    return torch.cat([context, own.expand(rows, -1, -1)], -1)
