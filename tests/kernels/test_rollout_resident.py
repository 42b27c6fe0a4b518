"""The rollout as one launch: its CUDA C on a CPU, every thread a fiber, against float64.

tests/kernels/emulated_warp.h says what a GPU's instructions do; on a GPU: test_gpu_rollout.
"""

import ctypes
import shutil
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.rollout_generator import Generated, Shapes, generate
from domino_kernels.cuda.program import Definitions
from domino_kernels.rollout_peers import PeerKeys
from domino_kernels.rollout_reference import rollout_reference
from domino_kernels.rollout_weights import DominoWeights
from tests.kernels.emulated_program import launch

pytest.importorskip("triton")
from domino_kernels.rollout_resident import (
    Machine,
    ResidentRollout,
    fits,
    key_slots,
)

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
CTAS, GRU, BOTTLENECK, HIDDEN = 12, 64, 96, 96
KEY_OF_TOKEN_0 = 0x7FFFFFFF


class Emulated:
    """Ranks' kernels, kept until `launch` runs them at the same time."""

    def __init__(self, shared_bytes: int, ctas: int = CTAS) -> None:
        self.kept: list[tuple[Definitions, int, ctypes.Structure]] = []
        self.machine = Machine(
            ctas=ctas, shared_bytes=shared_bytes, launch=lambda *what: self.kept.append(what)
        )

    def launch(self) -> None:
        """AssertionError where they wait for each other for ever."""
        definitions, shared_bytes, _ = self.kept[0]
        launch(definitions, shared_bytes, *(params for _, _, params in self.kept))
        self.kept = []


def made(
    vocab: int, dtype: torch.dtype, *, flat: bool = False, bottleneck: int = BOTTLENECK
) -> Generated:
    shapes = Shapes(vocab=vocab, hidden=HIDDEN, gru=GRU, bottleneck=bottleneck)
    return generate(shapes, dtype=dtype, flat=flat)


def resident(
    case: Generated, emulated: Emulated, *, full: bool, batch: int, n: int,
    tokens: slice = slice(0, None), peers: PeerKeys | None = None,
) -> ResidentRollout:  # fmt: skip
    weights = case.weights
    table = case.embedding.float() @ weights.w_ih.float().T
    stacked = torch.cat([weights.w1[:, -GRU:], weights.w_hh]).contiguous()
    local = replace(weights, w2=weights.w2[tokens].contiguous())
    assert fits(local, len(local.w2), emulated.machine.ctas) is None
    return ResidentRollout(
        local, table, stacked, emulated.machine, full=full, proposals=n, max_batch=batch,
        first=tokens.start, peers=peers,
    )  # fmt: skip


def inputs(case: Generated, batch: int, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """hidden, current, base logits [n, B, V], W1's hidden part [n, B, E] and keys."""
    hidden, current = case.inputs(batch, n, 3)
    rows = hidden.transpose(0, 1).float()
    base = (rows @ case.lm_head.float().T).contiguous()
    from_hidden = (rows @ case.weights.w1[:, :HIDDEN].float().T).contiguous()
    return hidden, current, base, from_hidden, KEY_OF_TOKEN_0 - current


def proposed(case: Generated, batch: int, n: int, shared_bytes: int, *, full: bool) -> Tensor:
    """ids [batch, n] of the second of two runs: the first must leave nothing behind."""
    _, _, base, from_hidden, start = inputs(case, batch, n)
    ctas = max(CTAS, case.weights.bottleneck_dim // 8)  # each has eight rows of it at most
    emulated, ids = Emulated(shared_bytes, ctas), torch.full((batch, n), -1)
    run = resident(case, emulated, full=full, batch=batch, n=n)
    for rows in (base.flip(1).contiguous(), base):
        run.reset(batch, n)
        run.run(rows, from_hidden, start, ids)
        emulated.launch()
    return ids


@pytest.mark.parametrize(
    ("dtype", "batch", "vocab", "shared_bytes", "bottleneck"),
    [
        (torch.bfloat16, 1, 519, 40000, 160),  # all of the copy, two blocks a token, stays inside
        (torch.bfloat16, 5, 519, 26500, 96),  # three of a CTA's six tiles do
        (torch.float16, 11, 401, 48500, 96),  # two octets of requests, tokens that fill no tile
    ],
)
def test_modes_are_equal_and_float64s(
    dtype: torch.dtype, batch: int, vocab: int, shared_bytes: int, bottleneck: int
) -> None:
    """A fragment, slot or bound taken wrongly gives other tokens, or a hang."""
    case, n = made(vocab, dtype, bottleneck=bottleneck), 4
    exact = proposed(case, batch, n, shared_bytes, full=True)
    assert torch.equal(proposed(case, batch, n, shared_bytes, full=False), exact)
    hidden, current, *_ = inputs(case, batch, n)
    trace = rollout_reference(
        case.weights, case.lm_head, case.embedding, hidden, current,
        accumulate=torch.float64, forced=exact,
    )  # fmt: skip
    assert torch.equal(trace.ids, exact)


@pytest.mark.parametrize("kind", ["equal scores", "tokens twice", "no numbers"])
def test_hard_cases(kind: str) -> None:
    """Ties take the lowest id; a hidden row that is no number must still give a token."""
    case, batch, n = made(264, torch.bfloat16, flat=True), 2, 3
    w2, head = case.weights.w2.clone(), case.lm_head.clone()
    if kind == "equal scores":
        w2[:], head[:] = w2[:1].clone(), 0
    else:
        w2[1::2], head[1::2] = w2[::2].clone(), head[::2].clone()
    case = replace(case, weights=replace(case.weights, w2=w2), lm_head=head)
    if kind == "no numbers":
        case = replace(case, lm_head=torch.full_like(head, torch.nan))
    exact = proposed(case, batch, n, 40000, full=True)
    found = proposed(case, batch, n, 40000, full=False)
    assert ((found >= 0) & (found < 264)).all()
    if kind != "no numbers":
        assert torch.equal(found, exact)
        assert not (found % 2).any()
    if kind == "equal scores":
        assert not found.any()


def test_a_copy_that_lies_is_seen() -> None:
    """Were every token evaluated anyway, a broken copy would not show, nor would a saving."""
    case, batch, n = made(519, torch.bfloat16, flat=True), 4, 4
    exact = proposed(case, batch, n, 40000, full=True)
    _, _, base, from_hidden, start = inputs(case, batch, n)
    emulated, ids = Emulated(40000), torch.full((batch, n), -1)
    run = resident(case, emulated, full=False, batch=batch, n=n)
    run.copy[::2] = 0
    run.run(base, from_hidden, start, ids)
    emulated.launch()
    assert not torch.equal(ids, exact)


@pytest.mark.parametrize("full", [True, False])
def test_two_gpus_follow_the_same_tokens(full: bool) -> None:
    """Keys for the next run may come while this one's slots are still read."""
    case, batch, n, vocab = made(519, torch.bfloat16), 3, 4, 519
    _, _, base, from_hidden, start = inputs(case, batch, n)
    size = key_slots(2, CTAS, n, batch)
    slots = [torch.empty(2, size, dtype=torch.int64) for _ in range(2)]
    pointers = [own.data_ptr() for own in slots]
    emulated, found, runs = Emulated(40000), [], []
    shares = slice(0, 260), slice(260, vocab)
    for rank, tokens in enumerate(shares):
        peers = PeerKeys(slots[rank], pointers, rank)
        runs.append(
            resident(case, emulated, full=full, batch=batch, n=n, tokens=tokens, peers=peers)
        )
    for rows in (base.flip(1), base):
        found = [torch.full((batch, n), -1) for _ in shares]
        parts = [rows[..., tokens].contiguous() for tokens in shares]  # until they are launched
        for run, part, ids in zip(runs, parts, found, strict=True):
            run.reset(batch, n)
            run.run(part, from_hidden, start, ids)
        emulated.launch()
    wanted = proposed(case, batch, n, 40000, full=True)
    assert torch.equal(found[0], wanted)
    assert torch.equal(found[1], wanted)


def test_heads_that_do_not_fit_are_told() -> None:
    """They run by several launches; why must be in the log."""
    head = made(519, torch.bfloat16).weights
    wide = DominoWeights(w_ih=head.w_ih, w_hh=torch.empty(1, 8 * CTAS + 32), w1=head.w1, w2=head.w2)
    assert "GRU has 128 units" in str(fits(wide, 519, CTAS))
    assert "float32" in str(fits(replace(head, w2=head.w2.float()), 519, CTAS))
    assert "fewer than" in str(fits(head, 3, CTAS))
    assert fits(head, 519, CTAS) is None
