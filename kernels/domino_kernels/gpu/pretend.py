# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""What a step chose in, what benchmarks of pretended acceptance have it choose out, in place."""

import triton
import triton.language as tl
from torch import Tensor

from domino_kernels.rollout_device import after_previous, launch_options


@triton.jit(do_not_specialize=["out", "ids", "counts", "accepted", "width", "vocab"])
def _pretend_kernel(out, ids, counts, accepted, width, vocab, W: tl.constexpr, PDL: tl.constexpr):
    after_previous(PDL)
    b, j = tl.program_id(0), tl.arange(0, W)
    count = tl.load(counts + b)
    wanted = tl.minimum(tl.load(accepted + b), count - 1)
    sound = tl.load(out + b * (width + 2)) >= 0
    choices = out + b * (width + 2) + 2 + j
    choice = tl.load(choices, j < width, 0)
    proposed = tl.load(ids + b * width + j + 1, j + 1 < count, -1)
    refused = tl.where(choice == proposed, (choice + 1) % vocab, choice)
    choice = tl.where(j < wanted, proposed, tl.where(j == wanted, refused, choice))
    if sound & (wanted >= 0):
        tl.store(choices, choice, j < width)
        tl.store(out + b * (width + 2), wanted)
        tl.store(out + b * (width + 2) + 1, tl.sum(tl.where(j == wanted, choice, 0), axis=0))


def pretend(out: Tensor, ids: Tensor, counts: Tensor, accepted: Tensor, vocab: int) -> None:
    """out [B, W + 2]: as `greedy_accept` wrote it, from now on with `accepted` [B] proposals kept.

    ids [B, W], counts [B]: as there. Below 0, and where logits were no numbers, it stays.
    """
    batch, width = ids.shape
    _pretend_kernel[(batch,)](
        out, ids, counts, accepted, width, vocab, W=triton.next_power_of_2(width),
        **launch_options(out, warps=1, early=False),
    )  # fmt: skip
