# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""A verify step's result in, the next draft step's rows and blocks out, all on the device.

So a draft on the same device starts right behind the target, before the host knows what was kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.attention import Visibility
from domino_kernels.rollout_device import after_previous, launch_options

# Compiled once, not for each kind of number or alignment, which differs from bucket to bucket: the
# first drafted step of each would wait for a compiler, 0.12 to 0.15 s.
_VARYING = [
    "out", "positions", "slots", "new_positions", "new_slots", "table", "told", "ids",
    "block_positions", "block_slots", "first", "last", "used_first", "used_last", "count", "width",
    "pages", "told_width", "mask", "start_used", "end_used",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a verify step of `width` ids a sequence leaves on the device.

    out [batch, width + 2] int32: as `greedy_accept` writes it; positions, slots [batch * width]
    int32: of the ids; rows [slots, hidden]: the projected row of every position that has run.
    """

    out: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor

    @property
    def width(self) -> int:
        return self.out.shape[1] - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInputs:
    """What a draft step of a batch reads, written by `hand_over`.

    ids, positions, slots [batch, block] int32: of the blocks; edges: first and last visible keys
    [batch, block] of each rule; used_edges [batch, count]: those of the last rule for the rows
    `used`. rows [batch * most, hidden], new_positions, new_slots [batch * most]: to append, `most`
    places a sequence. table [batch, pages]: where each sequence's positions are.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    rules: Sequence[Visibility]
    edges: Sequence[tuple[Tensor, Tensor]]
    used: slice
    used_edges: tuple[Tensor, Tensor]
    used_rule: int
    rows: Tensor
    new_positions: Tensor
    new_slots: Tensor
    table: Tensor
    page_size: int
    mask_id: int


@triton.jit(do_not_specialize=_VARYING)
def _rows_kernel(out, positions, slots, rows, to, new_positions, new_slots, table, told, count,
                 width, pages, H: tl.constexpr, T: tl.constexpr, PAGE: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    b, j, most = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    accepted = tl.load(out + b * (width + 2), b < count, -1)
    taken, at, h = j <= accepted, b * most + j, tl.arange(0, T)
    position = tl.load(positions + b * width, taken, 0) + j
    slot = tl.load(slots + b * width + j, taken, 0).to(tl.int64)
    values = tl.load(rows + slot * H + h, taken & (h < H), 0.0)
    tl.store(to + at.to(tl.int64) * H + h, values, h < H)
    # A sum of numbers is none only where it overflows: such a row is not worth more than none.
    total = tl.sum(values.to(tl.float32), axis=0)
    sound = total - total == 0.0
    page = tl.load(table + b * pages + position // PAGE, taken & (position // PAGE < pages), 0)
    tl.store(new_positions + at, tl.where(taken, position, 0))
    tl.store(new_slots + at, tl.where(taken & sound, page * PAGE + position % PAGE, -1))
    tl.store(told + b * (most + 2) + 2 + j, tl.where(sound, 1, 0))


@triton.jit(do_not_specialize=_VARYING)
def _blocks_kernel(out, positions, ids, block_positions, block_slots, first, last, used_first,
                   used_last, table, told, count, width, pages, told_width, mask, start_used,
                   end_used, BLOCK: tl.constexpr, B: tl.constexpr, CAUSAL: tl.constexpr,
                   WINDOW: tl.constexpr, MOVES: tl.constexpr, PAGE: tl.constexpr,
                   PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    b, c = tl.program_id(0), tl.arange(0, B)
    accepted = tl.load(out + b * (width + 2), b < count, -1)
    live = accepted >= 0
    bonus = tl.load(out + b * (width + 2) + 1, live, 0)
    start = tl.load(positions + b * width, live, 0) + accepted + 1
    at = tl.where(live, start + c, 0)
    here = b * BLOCK + c
    page = tl.load(table + b * pages + at // PAGE, (c < BLOCK) & (at // PAGE < pages), 0)
    tl.store(ids + here, tl.where(c == 0, bonus, mask), c < BLOCK)
    tl.store(block_positions + here, at, c < BLOCK)
    tl.store(block_slots + here, tl.where(live, page * PAGE + at % PAGE, -1), c < BLOCK)
    behind = at + 1 if CAUSAL else start + BLOCK + c * 0
    behind = tl.where(live, behind, 0)
    begin = (at + 1 - WINDOW if MOVES else start - WINDOW + c * 0) if WINDOW else c * 0
    begin = tl.where(live, tl.maximum(begin, 0), 0)
    tl.store(first + here, begin, c < BLOCK)
    tl.store(last + here, behind, c < BLOCK)
    used, place = (c >= start_used) & (c < end_used), b * (end_used - start_used) + c - start_used
    tl.store(used_first + place, begin, used)
    tl.store(used_last + place, behind, used)
    tl.store(told + b * told_width, tl.where(live, accepted + 1, 0))
    tl.store(told + b * told_width + 1, bonus)


def hand_over(verified: Verified, inputs: DraftInputs, count: int) -> Tensor:
    """The first `count` sequences of the verify step are those of the draft step, in its order, and
    each accepts fewer than `most` proposals.

    Returns told [batch, 2 + most] int32: rows taken of each, its current token, and for each row
    whether it is all numbers; one that is not is left out. Where logits were no numbers, and beyond
    `count`, there are 0 rows and no block.
    """
    batch, block = inputs.ids.shape
    most, hidden = len(inputs.new_slots) // batch, inputs.rows.shape[1]
    told = torch.empty(batch, 2 + most, dtype=torch.int32, device=inputs.ids.device)
    pages, page = inputs.table.shape[1], inputs.page_size
    options = launch_options(inputs.ids, early=False)
    _rows_kernel[batch, most](
        verified.out, verified.positions, verified.slots, verified.rows, inputs.rows,
        inputs.new_positions, inputs.new_slots, inputs.table, told, count, verified.width, pages,
        H=hidden, T=triton.next_power_of_2(hidden), PAGE=page, **options,
    )  # fmt: skip
    unused = torch.empty_like(inputs.used_edges[0])
    for number, rule in enumerate(inputs.rules):
        is_used = number == inputs.used_rule
        _blocks_kernel[(batch,)](
            verified.out, verified.positions, inputs.ids, inputs.positions, inputs.slots,
            *inputs.edges[number], *(inputs.used_edges if is_used else (unused, unused)),
            inputs.table, told, count, verified.width, pages, 2 + most, inputs.mask_id,
            inputs.used.start, inputs.used.stop, BLOCK=block, B=triton.next_power_of_2(block),
            CAUSAL=rule.causal, WINDOW=rule.window or 0, MOVES=rule.window_moves, PAGE=page,
            **options,
        )  # fmt: skip
    return told
