"""The loss over a part of the vocabulary: indexed rows of both heads, labels outside left out."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from serving.option_type import OptionError
from tests.training import runs
from training.cross_entropy import Head, head_losses
from training.dataset import pack
from training.ranks import ONE_RANK
from training.vocabulary import Vocabulary

V, H, E, N = 31, 8, 4, 12


def test_all_rows_are_the_whole_loss(tmp_path: Path) -> None:
    """An index that reorders rows would pair labels with other rows."""
    losses = []
    for name, rows in (("all", None), ("part", 257)):
        session = runs.session(tmp_path / name, vocab_rows=rows)
        session.trainer.train_step()
        losses.append(session.trainer.metrics()["loss"])
    assert losses[0] == losses[1]


def test_the_most_frequent_labels_are_kept() -> None:
    """Prompts' tokens are never predicted and must not take the labels' places."""
    packed = pack(runs.documents(), 64, 0)
    table = torch.randn(257, H)
    part = Vocabulary.most_frequent(40, packed, table, ONE_RANK)
    counts = torch.bincount(packed.ids[packed.supervised].long(), minlength=257)
    outside = torch.ones(257, dtype=torch.bool)
    outside[part.ids] = False
    assert int(counts[outside].max()) <= int(counts[part.ids].min())
    assert part.ids.tolist() == sorted(part.ids.tolist()) and len(part.ids) == 40
    assert torch.equal(part.lm_head, table[part.ids])
    ids, weight = part.labels(torch.arange(257), torch.ones(257))
    assert torch.equal(part.ids[ids[weight > 0]], part.ids) and int(weight.sum()) == 40


def test_losses_and_gradients_are_those_of_the_part() -> None:
    """A correction indexed otherwise than the head learns other tokens' biases (seed 003's
    follow-up); rows outside must get exactly no gradient."""
    generator = torch.Generator().manual_seed(0)
    hidden, small = (torch.randn(N, size, generator=generator) for size in (H, E))
    head, up = (torch.randn(V, size, generator=generator) for size in (H, E))
    up.requires_grad_()
    ids = torch.tensor([2, 3, 5, 7, 11, 13, 17, 30])
    places = torch.full((V,), -1)
    places[ids] = torch.arange(len(ids))
    part = Vocabulary(ids=ids, places=places, lm_head=head[ids])
    labels = torch.tensor([2, 3, 4, 5, 7, 11, 13, 17, 30, 0, 2, 5])
    mapped, weight = part.labels(labels, torch.linspace(1, 2, N))
    made = Head(lm_head=part.lm_head, chunk=5)
    zero = torch.zeros(N)
    loss, _, _ = head_losses(made, hidden, small, up[part.ids], mapped, zero, weight)
    (ours,) = torch.autograd.grad(loss, up)
    inside = [i for i, label in enumerate(labels.tolist()) if label in ids.tolist()]
    assert (weight > 0).nonzero()[:, 0].tolist() == inside
    logits = (hidden @ head.T + small @ up.T)[:, ids]
    plain = F.cross_entropy(logits[inside], places[labels[inside]], reduction="none")
    expected = (plain * torch.linspace(1, 2, N)[inside]).sum()
    torch.testing.assert_close(loss, expected)
    (theirs,) = torch.autograd.grad(expected, up)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    outside = [i for i in range(V) if i not in ids.tolist()]
    assert not ours[outside].any()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """DSpark's distance is over the whole vocabulary."""
    for changes in ({"vocab_rows": 0}, {"vocab_rows": 9, "head": "dspark"}):
        with pytest.raises(OptionError, match="vocab_rows"):
            runs.config(tmp_path, **changes)
