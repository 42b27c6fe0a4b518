# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Logits and proposals in; the target's choices, the accepted count and the bonus token out.

A row's choice is its highest logit, or what domino_kernels.gpu.draw draws.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.gpu.draw import TILE, draw
from domino_kernels.rollout_device import (
    LOWEST_KEY,
    after_previous,
    key_token,
    launch_options,
    pack_key,
)
from domino_kernels.rollout_reference import lowest_argmax

HIGHEST, LOWEST = tl.constexpr(0x7F800000), tl.constexpr(-0x7F800001)  # both infinities, ordered


@triton.jit
def _best_kernel(logits, keys, meets, parts, first, V: tl.constexpr, T: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    tl.store(meets + row, 0)
    v = part * T + tl.arange(0, T)
    at = logits + row.to(tl.int64) * V + v
    scores = tl.load(at, v < V, -float("inf")).to(tl.float32)
    scores = tl.where(scores == scores, scores, float("inf"))  # found, and then refused
    best = tl.max(scores, axis=0)
    token = tl.min(tl.where((scores == best) & (v < V), v, V - 1), axis=0)
    tl.store(keys + row * parts + part, pack_key(best, first + token))


@triton.jit
def _accept_kernel(keys, ids, counts, out, parts, width, PARTS: tl.constexpr, W: tl.constexpr,
                   PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    sequence, j, part = tl.program_id(0), tl.arange(0, W), tl.arange(0, PARTS)
    count = tl.load(counts + sequence)
    row = sequence * width + j
    at = keys + row[:, None] * parts + part[None, :]
    found = tl.load(at, (j < width)[:, None] & (part < parts)[None, :], LOWEST_KEY)
    best = tl.max(found, axis=1)
    choice = key_token(best)
    score = (best >> 32).to(tl.int32)
    infinite = (score >= HIGHEST) | (score <= LOWEST)
    broken = tl.sum(tl.where((j < count) & infinite, 1, 0), axis=0)
    proposed = tl.load(ids + row + 1, j + 1 < count, -1)
    wrong = tl.where((j + 1 < count) & (proposed == choice), W, j)
    accepted = tl.min(wrong, axis=0)
    bonus = tl.sum(tl.where(j == accepted, choice, 0), axis=0)
    result = out + sequence * (width + 2)
    tl.store(result, tl.where(broken > 0, -1, accepted))
    tl.store(result + 1, bonus)
    tl.store(result + 2 + j, choice, j < width)


def greedy_accept(
    logits: Tensor,
    ids: Tensor,
    counts: Tensor,
    *,
    first: int = 0,
    highest: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """logits [B * W, V], ids [B, W] int32 (current, then proposals), counts [B] int32 ids used.

    Returns [B, W + 2] int32: accepted proposals, the bonus token, then the choice after each id:
    the highest logit, the lowest id on ties. The accepted count is -1 where the logits of a used
    id are no numbers. Where others hold other logits: `first` is the id of column 0, and `highest`
    takes the maximum of int64 keys [B * W, 1] over all.
    """
    keys, _ = _best_keys(logits, first)
    if highest:
        keys = highest(keys.amax(1, keepdim=True))
    return _accept(keys, ids, counts, early=highest is None)


def sampling_accept(
    logits: Tensor, ids: Tensor, counts: Tensor, positions: Tensor, knobs: Tensor
) -> Tensor:
    """As `greedy_accept`, but sequences whose `knobs` have a temperature keep what is drawn.

    positions [B * W] int32: of the ids; knobs [B, 5] float64, as `draw` takes them.
    """
    keys, meets = _best_keys(logits, 0)
    draw(logits, keys, meets, counts, positions, knobs)
    return _accept(keys, ids, counts, early=True)


def _best_keys(logits: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The best key of each TILE of a row [n, parts], and a 0 a row [n] int32."""
    (rows, vocab), parts = logits.shape, triton.cdiv(logits.shape[1], TILE)
    keys = torch.empty(rows, parts, dtype=torch.int64, device=logits.device)
    meets = torch.empty(rows, dtype=torch.int32, device=logits.device)
    _best_kernel[rows, parts](
        logits, keys, meets, parts, first, V=vocab, T=TILE, **launch_options(logits, warps=8)
    )
    return keys, meets


def _accept(keys: Tensor, ids: Tensor, counts: Tensor, *, early: bool) -> Tensor:
    (batch, width), parts = ids.shape, keys.shape[1]
    out = torch.empty(batch, width + 2, dtype=torch.int32, device=keys.device)
    _accept_kernel[(batch,)](
        keys, ids, counts, out, parts, width, PARTS=triton.next_power_of_2(parts),
        W=triton.next_power_of_2(width), **launch_options(keys, warps=4, early=early),
    )  # fmt: skip
    return out


def greedy_accept_reference(logits: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """What `greedy_accept` writes."""
    batch, width = ids.shape
    choices = lowest_argmax(logits.float()).view(batch, width)
    proposed = torch.arange(1, width, device=ids.device) < counts[:, None]
    right = proposed & (ids[:, 1:] == choices[:, :-1])
    accepted = right.long().cumprod(1).sum(1, keepdim=True)
    used = torch.arange(width, device=ids.device) < counts[:, None]
    good = logits.amax(-1).isfinite().view(batch, width) | ~used
    told = torch.where(good.all(1, keepdim=True), accepted, -1)
    return torch.cat([told, choices.gather(1, accepted), choices], 1).int()
