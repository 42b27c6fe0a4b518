"""DSpark: losses against plain PyTorch, training against serving, its checkpoints and refusals."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from domino_cli.in_process import collect
from domino_kernels.linear import Linear
from draft_service.dspark import DSparkSampler
from serving.checkpoint import Checkpoint
from serving.draft_format import open_draft
from serving.draft_tensors import CONFIDENCE, W2
from serving.errors import CheckpointError
from serving.target_config import open_target
from tests.engines import MODES, engines
from tests.recorded_models import BLOCK, DOMINO_SHIFT, PROMPTS, TARGET
from tests.training import runs, tiny
from training.distance import DistanceHead, distance_losses
from training.dspark import markov
from training.evaluate import HeldOut, evaluate
from training.generate import Generator, Limits
from training.opening import open_session
from training.regenerate import document
from training.session import EXPORT

KINDS = ("vanilla", "gated", "rnn")
NEW, TAPS = 40, (1, 2, 3)


def random(*shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


@pytest.mark.parametrize("chunk", [3, 100])
def test_losses_and_gradients_are_autograds(chunk: int) -> None:
    """Hand-made gradients that are wrong train without any sign, only worse."""
    n, hidden, rank, vocab = 10, 6, 4, 23
    made = [
        random(n, hidden, grad=True),
        random(n, rank, grad=True),
        random(vocab, rank, grad=True),
    ]
    lm_head, last = random(vocab, hidden, seed=1), random(n, hidden, seed=2)
    labels = torch.arange(n) % vocab
    weight = torch.linspace(0, 1, n).double()
    head = DistanceHead(lm_head=lm_head, chunk=chunk, ce=0.1, l1=0.9)
    hidden_rows, small, up = made
    found = distance_losses(head, hidden_rows, small, up, labels, weight, last)
    loss, base, final, distance = found
    ours = torch.autograd.grad(loss, made)

    plain = made[0] @ lm_head.T
    logits = plain + made[1] @ made[2].T
    apart = (logits.softmax(-1) - (last @ lm_head.T).softmax(-1)).abs().sum(-1)
    ce = F.cross_entropy(logits, labels, reduction="none")
    expected = (weight * (0.1 * ce + 0.9 * apart)).sum()
    # Chunks' logits pass through float32, as in training.
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(ours, torch.autograd.grad(expected, made), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(final.double(), ce.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(distance.double(), apart.detach(), rtol=1e-5, atol=1e-5)
    theirs = F.cross_entropy(plain, labels, reduction="none")
    torch.testing.assert_close(base.double(), theirs.detach(), rtol=1e-5, atol=1e-5)


def trained(folder: Path, kind: str, **changes: Any) -> Path:
    """The export of a short run."""
    options = {"head": "dspark", "markov_head": kind, "markov_rank": 8}
    runs.session(folder, **options | changes).run(lambda _: None)
    return folder / EXPORT


@pytest.mark.parametrize("kind", KINDS)
def test_an_overfit_draft_is_accepted_when_served(tmp_path: Path, kind: str) -> None:
    """The gate from training to serving, by three code paths of one head: a shifted predecessor
    shows as acceptance alone."""
    limits = Limits(rows=4, prompt=64, new=NEW, straggling=0.0)
    asked = PROMPTS[1:]
    answers = Generator(tiny.target(), limits, stop_ids=[256]).answers(asked)
    documents = [document(p, a) for p, a in zip(asked, answers, strict=True)]
    sizes = {"row_length": 96, "anchors": 32, "markov_rank": 16, "steps": 400, "lr": 6e-3}
    options = {"head": "dspark", "markov_head": kind, "ce": 1.0, "l1": 1.0}
    config = runs.config(tmp_path, **sizes | options)
    draft = open_session(config, lambda _: None, documents=documents).run(lambda _: None)
    prompts = [HeldOut("all", list(p)) for p in asked]
    sizes = {"width": BLOCK, "new": NEW}
    found = evaluate(tiny.target(TAPS), draft, prompts, width=BLOCK, new=NEW, more_stops=[256])
    least = [math.ceil((len(a) - 1) / BLOCK) for a in answers]  # steps if all proposals were right
    steps = 0
    with engines(TARGET, draft, int8=False) as services:
        for prompt, answer in zip(asked, answers, strict=True):
            events = services.submit(
                prompt, NEW, mode=MODES["dspark"], draft_tokens=BLOCK - 1, stop_ids=[256]
            )
            ids, complete = collect(events)
            assert ids == answer
            steps += complete.speculation.verify_steps
    assert steps <= 1.3 * sum(least)
    assert found["workloads"]["all"]["verify_steps"] == steps


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forcing_is_serving_with_its_own_proposals(tmp_path: Path, kind: str) -> None:
    """The state of the rnn, or the token that W1 reads, one slot off."""
    folder = trained(tmp_path, kind, steps=4)
    checkpoint, config = open_draft(folder, open_target(TARGET)[1])
    weights = {
        name: checkpoint.tensor(name, checkpoint.shapes[name], torch.float32)
        for name in checkpoint.tensors
    }
    weights[W2] = torch.randn(weights[W2].shape, generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(3, BLOCK, config.hidden_size, generator=torch.Generator().manual_seed(2))
    head = torch.randn(config.vocab_size, config.hidden_size)
    sampler = DSparkSampler(config, checkpoint, Linear(head), torch.zeros(1))
    sampler._weights[W2], sampler._to_vocab = weights[W2], Linear(weights[W2])
    current = torch.tensor([5, 9, 200])
    found = sampler.run(hidden, current)
    previous = torch.cat([current[:, None], found.ids[:, :-1]], 1)
    small, sure = markov(config, weights, hidden[None], previous[None])
    logits = hidden @ head.T + small[0] @ weights[W2].T
    torch.testing.assert_close(logits, found.logits, rtol=1e-4, atol=1e-4)
    assert sure is not None and found.confidences is not None
    torch.testing.assert_close(sure[0], found.confidences, rtol=1e-4, atol=1e-4)


def test_the_bias_and_the_confidence_are_learnt(tmp_path: Path) -> None:
    """A head without a gradient is a DFlash draft under another name."""
    session = runs.session(tmp_path, head="dspark", markov_rank=8, steps=30, lr=1e-2)
    first = {n: w.clone() for n, w in session.trainer.masters.items()}
    session.run(lambda _: None)
    for name in (W2, CONFIDENCE + "weight"):
        assert not torch.equal(first[name], session.trainer.masters[name]), name
    assert session.trainer.metrics()["lambda"] == 0.0
    assert session.trainer.metrics()["final_loss"] < session.trainer.metrics()["base_loss"]


def test_without_a_confidence_head(tmp_path: Path) -> None:
    """A share of 0 must not leave an untrained head in the checkpoint."""
    draft = trained(tmp_path, "vanilla", steps=4, confidence=0.0)
    names = Checkpoint(draft).tensors
    assert W2 in names and CONFIDENCE + "weight" not in names


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"markov_head_type": "lstm"}, "markov_head_type"),
        ({"target_layer_ids": [-1, 2, 4]}, r"target_layer_ids\[0\]"),
        ({"markov_rank": -1}, "markov_rank"),
        ({"markov_rank": 0, "enable_confidence_head": True}, "enable_confidence_head"),
        ({"markov_rank": 4}, "markov_w1"),
        ({"sliding_window": 8, "layer_types": ["sliding_attention"]}, "layer_types"),
    ],
)
def test_refusals_name_the_field(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    """A head read with the wrong kind or rank drafts nonsense."""
    draft = trained(tmp_path, "vanilla", steps=2)
    file = draft / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=named):
        open_draft(draft, open_target(TARGET)[1])


def test_another_mode_is_refused(tmp_path: Path) -> None:
    """Requests for a head that the checkpoint lacks must not run with another one."""
    with engines(TARGET, DOMINO_SHIFT) as services, pytest.raises(Exception, match="dspark"):
        services.submit(PROMPTS[0], 5, mode=MODES["dspark"], draft_tokens=3)
