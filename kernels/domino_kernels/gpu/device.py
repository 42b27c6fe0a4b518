# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# @triton.jit functions take values of the kernel language, which has no types for mypy
"""Device functions the kernels of a target's step share: parts added in order, early reads."""

import triton
import triton.language as tl

LINE = tl.constexpr(128)  # bytes a prefetch brings


@triton.jit
def summed(parts, at, mask, stride, PARTS: tl.constexpr):
    """float32 sum of `PARTS` values, `stride` apart, in their order."""
    total = tl.load(parts + at, mask, 0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * stride + at, mask, 0.0).to(tl.float32)
    return total


@triton.jit
def prefetch(pointers):
    """Asks for the cache lines at `pointers` to be brought into the L2 cache; waits for nothing."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [pointers],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
