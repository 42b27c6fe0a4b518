# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Cross-entropies of a base and a corrected branch over the same labels, with their gradients.

Logits in, gradients out in the same memory: nothing of size [rows, vocab] is stored twice. One
program a row: one pass for the softmax sums, one for the gradients.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _add_exp(top, total, x):
    """Running maximum and sum of exponentials, lane by lane."""
    new = tl.maximum(top, x)
    return new, total * tl.exp(top - new) + tl.exp(x - new)


@triton.jit
def _log_sum(top, total):
    best = tl.max(top, 0)
    return best + tl.log(tl.sum(total * tl.exp(top - best), 0))


@triton.jit
def _branches(base, final, teacher, labels, base_weight, final_weight, base_loss, final_loss, soft,
              V: tl.constexpr, FINAL: tl.constexpr, TEACHER: tl.constexpr,
              BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    base, final, teacher = base + row * V, final + row * V, teacher + row * V
    lane = tl.arange(0, BLOCK)
    LOW: tl.constexpr = -1e30
    base_top, base_sum = tl.full([BLOCK], LOW, tl.float32), tl.zeros([BLOCK], tl.float32)
    final_top, final_sum = base_top, base_sum
    teach_top, teach_sum = base_top, base_sum
    for first in range(0, V, BLOCK):
        inside = first + lane < V
        x = tl.load(base + first + lane, inside, LOW).to(tl.float32)
        base_top, base_sum = _add_exp(base_top, base_sum, x)
        if FINAL:
            x = tl.load(final + first + lane, inside, LOW).to(tl.float32)
            final_top, final_sum = _add_exp(final_top, final_sum, x)
        if TEACHER:
            x = tl.load(teacher + first + lane, inside, LOW).to(tl.float32)
            teach_top, teach_sum = _add_exp(teach_top, teach_sum, x)
    base_log = _log_sum(base_top, base_sum)
    final_log = _log_sum(final_top, final_sum) if FINAL else 0.0
    teach_log = _log_sum(teach_top, teach_sum) if TEACHER else 0.0
    label = tl.load(labels + row)
    wb, wf = tl.load(base_weight + row), tl.load(final_weight + row)
    tl.store(base_loss + row, base_log - tl.load(base + label).to(tl.float32))
    if FINAL:
        tl.store(final_loss + row, final_log - tl.load(final + label).to(tl.float32))
    tl.debug_barrier()  # the label's logits are read before they are overwritten
    for first in range(0, V, BLOCK):
        inside = first + lane < V
        wanted = tl.where(first + lane == label, 1.0, 0.0)
        if TEACHER:
            x = tl.load(teacher + first + lane, inside, LOW).to(tl.float32)
            wanted = (1.0 - soft) * wanted + soft * tl.exp(x - teach_log)
        x = tl.load(base + first + lane, inside, LOW).to(tl.float32)
        slope = wb * (tl.exp(x - base_log) - wanted)
        if FINAL:
            x = tl.load(final + first + lane, inside, LOW).to(tl.float32)
            own = wf * (tl.exp(x - final_log) - wanted)
            tl.store(final + first + lane, own.to(final.dtype.element_ty), inside)
            slope += own
        tl.store(base + first + lane, slope.to(base.dtype.element_ty), inside)


def branch_losses_(
    base: Tensor,
    final: Tensor | None,
    teacher: Tensor | None,
    labels: Tensor,
    base_weight: Tensor,
    final_weight: Tensor,
    base_loss: Tensor,
    final_loss: Tensor,
    soft: float,
) -> None:
    """training.cross_entropy.branch_losses_ as one kernel; all tensors contiguous, on CUDA."""
    rows, vocab = base.shape
    _branches[(rows,)](
        base, base if final is None else final, base if teacher is None else teacher, labels,
        base_weight, final_weight, base_loss, final_loss, soft,
        vocab, final is not None, teacher is not None, BLOCK, num_warps=8,
    )  # fmt: skip
