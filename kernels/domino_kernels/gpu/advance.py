# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""A plain step's choices in, the indices of the step after it out, all on the device."""

import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.rollout_device import after_previous, launch_options


@triton.jit
def _advance_kernel(out, table, ids, positions, slots, last, table_width, PAGE: tl.constexpr,
                    PDL: tl.constexpr):  # fmt: skip
    after_previous(PDL)
    row = tl.program_id(0)
    if tl.load(last + row) > 0:
        position = tl.load(positions + row) + 1
        page = tl.load(table + row * table_width + position // PAGE)
        tl.store(ids + row, tl.load(out + row * 3 + 1))
        tl.store(positions + row, position)
        tl.store(slots + row, page * PAGE + position % PAGE)
        tl.store(last + row, position + 1)


def advance(out: Tensor, table: Tensor, index: Tensor, page_size: int) -> None:
    """index [4, n]: ids, positions, slots and last of rows of one id each, moved on by one.

    out [n, 3]: what `greedy_accept` wrote for them; table [n, pages]. Rows that see no key stay.
    """
    ids, positions, slots, last = index
    _advance_kernel[(len(out),)](
        out, table, ids, positions, slots, last, table.shape[1], PAGE=page_size,
        **launch_options(out, warps=1, early=False),
    )  # fmt: skip
