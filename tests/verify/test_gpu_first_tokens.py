"""First tokens chosen on the device: what the host chose before, and what a draft goes on from."""

import pytest
import torch

from tests.kernels.interpreted import run_interpreted

pytest.importorskip("triton")

SCRIPT = """
import dataclasses
from types import SimpleNamespace
from verify_service.choice import choose
from verify_service.gpu_first_tokens import first_tokens
from verify_service.sampling import SamplingParams
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence
from verify_service.vocabulary import Vocabulary

VOCAB, HIDDEN, PAGE = 70, 8, 4
generator = torch.Generator().manual_seed(2)
head = torch.randn(VOCAB, HIDDEN, generator=generator)
target = SimpleNamespace(
    logits=lambda normed: normed @ head.T, device=torch.device("cpu"),
    vocabulary=Vocabulary(VOCAB, slice(0, VOCAB)),
)
drawn = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=11)


def item(start, count, choices, sampling=None):
    request = Request(
        request_id="r", prompt_ids=[1] * (start + count + 1 - choices), max_tokens=9,
        stop_ids=frozenset(), emit=lambda event: None, sampling=sampling,
    )
    pages = list(range(9, 9 - start - count, -1))
    sequence = Sequence(request, pages=pages, kv_len=start)
    return Work(sequence=sequence, ids=[1] * count, choices=choices)


work = [item(0, 5, 1), item(3, 2, 1, drawn), item(2, 4, 1), item(0, 3, 0), item(0, 2, 0)]
normed = torch.randn(16, HIDDEN, generator=generator)
normed[10], normed[15] = torch.nan, torch.inf  # the ends of the third and of the last
table = torch.randn(60, HIDDEN, generator=generator)
found = first_tokens(target, normed, work, table, PAGE)
expected = choose(normed[[4, 6]] @ head.T, work[:2], [True, True], target.vocabulary)
assert found.answer()[:2] == expected and all(own.usable for own in expected)
assert [own.usable for own in found.answer()] == [True, True, False, True, False]
assert found.verified.out[:, :2].tolist() == [
    [0, expected[0].ids[0]], [0, expected[1].ids[0]], [-1, found.verified.out[2, 1]]
]
assert found.verified.positions.tolist() == [4, 4, 5]
assert found.verified.slots.tolist() == [8 * PAGE, 8 * PAGE, 8 * PAGE + 1]
on = first_tokens(target, normed[:5], work[3:], table, PAGE)
chosen = choose(normed[:0] @ head.T, work[3:4], [True], target.vocabulary)
assert on.verified is None and on.answer()[0] == chosen[0]
block = item(4, 3, 3)
wide = first_tokens(target, normed[:3], [block], table, PAGE)
assert wide.verified is None
assert wide.answer() == choose(normed[:3] @ head.T, [block], [True], target.vocabulary)
"""


def test_tokens_after_prompts_are_those_the_host_would_choose() -> None:
    """A first token of another prompt, one drawn with other numbers, or broken logits kept."""
    run_interpreted(SCRIPT)


def test_prompts_stand_behind_the_sequences_of_a_step() -> None:
    """A draft that begins from a row of the graph that nobody has, or from another's position."""
    from domino_kernels.gpu.hand_over import Verified
    from verify_service.gpu_first_tokens import beside

    rows = torch.zeros(1, 1)
    step = Verified(
        out=torch.arange(20, dtype=torch.int32).view(4, 5),
        positions=torch.arange(12, dtype=torch.int32),
        slots=torch.arange(100, 112, dtype=torch.int32),
        rows=rows,
    )
    ends = Verified(
        out=torch.tensor([[0, 7, 7], [-1, 0, 0]], dtype=torch.int32),
        positions=torch.tensor([40, 50], dtype=torch.int32),
        slots=torch.tensor([41, 51], dtype=torch.int32),
        rows=rows,
    )
    both = beside(step, 3, ends)
    assert both.width == 3
    assert both.out[:3].equal(step.out[:3]) and both.out[3:, :2].tolist() == [[0, 7], [-1, 0]]
    assert both.positions.tolist() == [*range(9), 40, 0, 0, 50, 0, 0]
    assert both.slots.view(-1, 3)[:, 0].tolist() == [100, 103, 106, 41, 51]
    assert beside(None, 0, ends) is ends
