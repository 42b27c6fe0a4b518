"""The chunked losses against autograd, metrics by hand, and what must not leak into a block."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.golden.fixture import Fixture
from tests.golden.run_training import Recorded
from training.cross_entropy import Head, head_losses
from training.labels import Labels
from training.metrics import accepted, count
from training.rows import Anchors

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = ("f5_training_domino_shift", "f5_training_domino_noshift", "f5_training_dflash")


def recorded(kind: str = KINDS[0]) -> Recorded:
    return Recorded(Fixture(GOLDEN / kind))


def random_inputs(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        **{"hidden": normal(50, 12), "small": normal(50, 5), "up": normal(33, 5)},
        **{"lm_head": normal(33, 12), "last": normal(50, 12)},
        "labels": torch.randint(0, 33, (50,), generator=generator),
        "base": torch.rand(50, generator=generator),
        "final": torch.rand(50, generator=generator),
    }


@pytest.mark.parametrize("soft", [0.0, 0.4])
@pytest.mark.parametrize("chunk", [7, 64])
def test_chunked_losses_have_the_gradients_of_autograd(chunk: int, soft: float) -> None:
    """Gradients formed by hand in chunks: a wrong sign or a lost chunk only learns slower."""
    x = random_inputs()
    leaves = [x[name].requires_grad_() for name in ("hidden", "small", "up")]
    base = x["hidden"] @ x["lm_head"].T
    final = base + x["small"] @ x["up"].T
    wanted = F.one_hot(x["labels"], 33) * (1 - soft)
    wanted = wanted + soft * (x["last"] @ x["lm_head"].T).softmax(-1)
    losses = [-(wanted * logits.log_softmax(-1)).sum(-1) for logits in (base, final)]
    expected = torch.autograd.grad((x["base"] * losses[0] + x["final"] * losses[1]).sum(), leaves)
    head = Head(lm_head=x["lm_head"], chunk=chunk, soft=soft)
    loss, base_loss, final_loss = head_losses(
        head, leaves[0], leaves[1], leaves[2], x["labels"], x["base"], x["final"], x["last"]
    )
    found = torch.autograd.grad(loss, leaves)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for ours, logits in ((base_loss, base), (final_loss, final)):
        hard = F.cross_entropy(logits.detach(), x["labels"], reduction="none")
        torch.testing.assert_close(ours, hard, atol=1e-5, rtol=1e-5)


def test_at_share_one_the_head_gets_exact_zeros() -> None:
    """Not None, which would stall data parallel training, and not noise, which AdamW scales up."""
    it = recorded()
    sums = it.objective(7.0).sums(it.weights, it.rows, it.anchors, torch.tensor(1.0))
    names = [n for n in it.weights if n.startswith(("prefix_gru", "embed_proj"))]
    for gradient in torch.autograd.grad(sums.loss, [it.weights[n] for n in names]):
        assert not gradient.any()


def test_a_batch_without_anchors_gives_zero_gradients() -> None:
    """NaN from an empty softmax or an unconnected loss ends a run (AutoModel #2826, #2468)."""
    it = recorded()
    dead = Anchors(
        columns=torch.zeros_like(it.anchors.columns), live=torch.zeros_like(it.anchors.live)
    )
    sums = it.objective(7.0).sums(it.weights, it.rows, dead, torch.tensor(0.5))
    assert float(sums.loss.detach()) == 0.0 and float(sums.weight) == 0.0
    for gradient in torch.autograd.grad(sums.loss, list(it.weights.values())):
        assert not gradient.any()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_leaks_into_a_block(kind: str) -> None:
    """A block that sees its labels learns to copy: low loss, acceptance 1 (verl-SpeCo #30)."""
    it = recorded(kind)
    row, block = 0, 2
    anchor = int(it.anchors.columns[row, block])
    hidden = it.draft.hidden(it.weights, it.rows, it.anchors)[row, block]
    ids, features = it.rows.ids.clone(), it.rows.features.clone()
    ids[row, anchor + 1 :] += 1
    features[row, anchor:] += 1.0
    columns = it.anchors.columns.clone()
    columns[row, :block], columns[row, block + 1 :] = 1, anchor + 3
    changed = it.draft.hidden(
        it.weights,
        replace(it.rows, ids=ids % 257, features=features),
        replace(it.anchors, columns=columns),
    )[row, block]
    assert torch.equal(hidden, changed)
    features[row, anchor - 1] += 1.0
    seen = it.draft.hidden(it.weights, replace(it.rows, features=features), it.anchors)[row, block]
    assert not torch.equal(hidden, seen)


def test_accepted_prefix_by_hand() -> None:
    """correct = 1 1 0 1 is two accepted; slots that do not count are neutral."""
    right = torch.tensor([[[1, 1, 0, 1], [0, 1, 1, 1]]]).bool()
    counts = torch.tensor([[[1, 1, 1, 1], [0, 1, 1, 0]]]).bool()
    assert accepted(right, counts).tolist() == [[2, 2]]


def test_top5_is_never_below_top1_even_of_a_tiny_vocabulary() -> None:
    """verl-SpeCo logged 0 for top-5 for weeks; 3 ids have no five best ones."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 3, (1, 4, 6), generator=generator)
    labels = Labels(ids=ids, counts=torch.ones_like(ids).bool(), weights=torch.ones(ids.shape))
    hidden = torch.randn(1, 4, 6, 8, generator=generator)
    head = Head(lm_head=torch.randn(3, 8, generator=generator))
    found = count(hidden, None, head, labels).figures()
    assert found["top5"] == 1.0 >= found["accuracy"] > 0
