"""What goes from a verify step to the draft's on the device, under Triton's interpreter."""

from typing import Any

import pytest
import torch

from tests.kernels.interpreted import run_interpreted

triton = pytest.importorskip("triton")

HAND_OVER = """
import numpy as np
from domino_kernels.attention import Span, Visibility
from domino_kernels.gpu.hand_over import DraftInputs, Verified, hand_over

PAGE, HIDDEN, BLOCK, WIDTH, BATCH, MASK = 4, 12, 6, 7, 4, 99
rules = [Visibility(causal=False, window=5, window_moves=False),
         Visibility(causal=True, window=3), Visibility(causal=True)]
for used in (slice(1, 5), slice(0, 4)):
    most, ints = 5, {"dtype": torch.int32}
    # accepted, bonus, choices of four sequences: the third's logits are no numbers, the fourth's
    # second row neither; the verify step is wider than a draft can accept
    out = torch.tensor([[2, 70, *[0] * 7], [0, 71, *[0] * 7], [-1, 72, *[0] * 7],
                        [3, 73, *[0] * 7]], **ints)
    starts, pages = [7, 13, 2, 4], [[3, 8, 1, 5, 0], [2, 9, 4, 7, 6], [10, 11, 12, 0, 0],
                                    [14, 15, 16, 0, 0]]
    positions = torch.tensor([[s + j for j in range(WIDTH)] for s in starts], **ints)
    slots = torch.randperm(40)[:28].to(torch.int32)
    rows = torch.randn(40, HIDDEN)
    rows[slots[3 * WIDTH + 1]] = float("inf")
    inputs = DraftInputs(
        ids=torch.empty(BATCH, BLOCK, **ints), positions=torch.empty(BATCH, BLOCK, **ints),
        slots=torch.empty(BATCH, BLOCK, **ints), rules=rules,
        edges=[(torch.empty(BATCH, BLOCK, **ints), torch.empty(BATCH, BLOCK, **ints))
               for _ in rules],
        used=used, used_edges=(torch.empty(BATCH, 4, **ints), torch.empty(BATCH, 4, **ints)),
        used_rule=1, rows=torch.empty(BATCH * most, HIDDEN),
        new_positions=torch.empty(BATCH * most, **ints),
        new_slots=torch.empty(BATCH * most, **ints), table=torch.tensor(pages, **ints),
        page_size=PAGE, mask_id=MASK,
    )
    verified = Verified(out=out, positions=positions.flatten(), slots=slots, rows=rows)
    told = hand_over(verified, inputs, 4).tolist()
    assert [row[:2] for row in told] == [[3, 70], [1, 71], [0, 0], [4, 73]]
    assert [all(row[2:]) for row in told] == [True, True, True, False]
    for b, (start, kept) in enumerate(zip(starts, (3, 1, 0, 4))):
        for j in range(most):
            at, place = b * most + j, start + j
            slot = pages[b][place // PAGE] * PAGE + place % PAGE
            sound = (b, j) != (3, 1)
            assert inputs.new_slots[at] == (slot if j < kept and sound else -1)
            if j < kept:
                assert inputs.new_positions[at] == place
                assert inputs.rows[at].equal(rows[slots[b * WIDTH + j]])
        end = start + kept
        if b == 2:
            assert (inputs.slots[b] == -1).all()
            assert all((last[b] == 0).all() for _, last in inputs.edges)
            continue
        assert inputs.ids[b].tolist() == [out[b, 1], *[MASK] * (BLOCK - 1)]
        assert inputs.positions[b].tolist() == list(range(end, end + BLOCK))
        table = pages[b]
        assert inputs.slots[b].tolist() == [
            table[p // PAGE] * PAGE + p % PAGE for p in range(end, end + BLOCK)
        ]
        for rule, (first, last) in zip(rules, inputs.edges):
            wanted = rule.keys(Span(start=end, count=BLOCK, pages=[]))
            assert (first[b].tolist(), last[b].tolist()) == wanted
        first, last = rules[1].keys(Span(start=end, count=BLOCK, pages=[]))
        assert inputs.used_edges[0][b].tolist() == first[used]
        assert inputs.used_edges[1][b].tolist() == last[used]
few = hand_over(verified, inputs, 1).tolist()
assert few[0][:2] == [3, 70] and [row[:2] for row in few[1:]] == [[0, 0]] * 3
assert (inputs.new_slots[most:] == -1).all() and (inputs.slots[1:] == -1).all()
"""

PRETEND = """
from domino_kernels.gpu.pretend import pretend

ids = torch.tensor([[5, 11, 12, 13], [6, 21, 22, 0], [7, 31, 32, 33], [8, 41, 42, 43]])
counts = torch.tensor([4, 3, 4, 4], dtype=torch.int32)
out = torch.tensor([[0, 3, 3, 12, 13, 9], [2, 4, 21, 22, 4, 0], [-1, 0, 1, 2, 3, 4],
                    [1, 42, 41, 42, 7, 8]], dtype=torch.int32)
before = out.clone()
pretend(out, ids.to(torch.int32), counts, torch.tensor([2, 9, 1, -1], dtype=torch.int32), 14)
# the target's choice after two proposals is the third: it is refused by the next id, 14 of 14
assert out[0].tolist() == [2, 0, 11, 12, 0, 9]
assert out[1].tolist() == [2, 4, 21, 22, 4, 0], "no more than there are"
assert out[2:].equal(before[2:])
"""


def test_rows_and_blocks_are_the_hosts() -> None:
    """A row, page or key taken wrongly only lowers acceptance, or writes into another session."""
    run_interpreted(HAND_OVER)


def test_pretended_steps_keep_what_is_asked() -> None:
    """A benchmark of another acceptance than its label says."""
    run_interpreted(PRETEND)


NUMBERS = "count", "width", "pages", "told_width", "mask", "start_used", "end_used", "vocab"


def forms(kernel: Any, ints: torch.Tensor, number: int) -> list[Any]:
    """By what Triton tells compiled forms of a kernel from each other."""
    from triton.runtime import jit

    rows = torch.zeros(4, 16)  # of an allocation of their own
    given = dict.fromkeys(NUMBERS, number) | {"rows": rows, "to": rows}
    values = [1 if p.is_constexpr else given.get(p.name, ints) for p in kernel.params]
    told = jit.create_function_from_signature(kernel.signature, kernel.params, jit.BaseBackend)
    found: list[Any] = told(*values)[1]
    return found


def test_each_kernel_is_compiled_once() -> None:
    """The first step of eight sessions waited 0.12 s for a compiler, in the middle of answers:
    buckets are parts of one tensor, which lie otherwise for each number of sessions."""
    from domino_kernels.gpu import hand_over, pretend

    ints = torch.zeros(64, dtype=torch.int32)
    for kernel in (hand_over._rows_kernel, hand_over._blocks_kernel, pretend._pretend_kernel):
        first = forms(kernel, ints, 1)
        assert forms(kernel, ints, 16) == forms(kernel, ints[1:], 7) == first
