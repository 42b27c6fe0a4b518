"""Training on a GPU against training on a CPU: FlexAttention, CUDA graphs and fused losses."""

from pathlib import Path
from typing import Any

import pytest
import torch

import verify_service.load
from benchmarks.training_mfu_checks import check_flex
from domino_cli.in_process import InProcess, collect
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.config import DraftServiceConfig
from draft_service.load import load
from tests.recorded_models import PROMPTS, TARGET
from tests.training import runs
from training.distance import _fused_row_losses, _row_losses
from verify_service.config import VerifyConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    runs.COMPILES,
]


def test_flex_is_the_dense_oracle() -> None:
    """Hidden states and every gradient: on a CPU flex has no backward pass to be compared."""
    assert len(list(check_flex(torch.device("cuda")))) == 3


@pytest.mark.parametrize("changes", [{}, {"head": "dflash"}, {"head": "dspark", "markov_rank": 8}])
def test_steps_are_those_of_a_cpu(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A graph that replays an old batch, share or rate still lowers the loss."""
    found = []
    for device in ("cuda", "cpu"):
        trainer = runs.session(tmp_path / device, device=device, **changes).trainer
        for _ in range(5):
            trainer.train_step()
        found.append((trainer.metrics(), trainer.masters))
    (ours, weights), (theirs, wanted) = found
    # Anchors are drawn on the device: the batches are the same, the blocks are not.
    assert ours["lr"] == pytest.approx(theirs["lr"])
    assert ours["lambda"] == theirs["lambda"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)
    for name, weight in weights.items():
        assert torch.isfinite(weight).all(), name
        assert weight.cpu().norm() == pytest.approx(wanted[name].norm(), rel=0.05, abs=0.05), name


def test_flex_and_dense_take_the_same_steps(tmp_path: Path) -> None:
    """The same device draws the same blocks, so weights after some steps agree closely."""
    masters = []
    for attention in ("flex", "dense"):
        options = {"device": "cuda", "attention": attention, "optimizer": "muon"}
        trainer = runs.session(tmp_path / attention, **options).trainer
        for _ in range(4):
            trainer.train_step()
        masters.append(trainer.masters)
    for name, weight in masters[0].items():
        torch.testing.assert_close(weight, masters[1][name], atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_dspark_is_served_as_on_a_cpu(tmp_path: Path, kind: str) -> None:
    """The head in a draft step's graph: a token or a state kept from the capture only costs
    acceptance."""
    options = {"head": "dspark", "markov_rank": 16, "markov_head": kind, "steps": 60}
    options |= {"ce": 1.0, "l1": 1.0}
    draft = runs.session(tmp_path, **options).run(lambda _: None)
    found = []
    for device in ("cuda:0", "cpu"):
        there = DraftServiceConfig(
            target=TARGET,
            draft=draft,
            device=device,
            page_size=16,
            kv_tokens=512,
            max_sessions=4,
        )
        target = VerifyConfig(target=TARGET, draft=draft, page_size=16, kv_tokens=2048)
        with InProcess(verify_service.load.load(target), load(there)) as both:
            for prompt in PROMPTS:
                plain = collect(both.submit(prompt, 24))[0]
                events = both.submit(prompt, 24, mode=spec.MODE_DSPARK, draft_tokens=7)
                ids, complete = collect(events)
                assert ids == plain
                found.append(complete.speculation.verify_steps)
    half = len(found) // 2
    for ours, theirs in zip(found[:half], found[half:], strict=True):
        assert abs(ours - theirs) <= 1  # float32 sums in another order: a near tie falls otherwise


def test_fused_distances_are_the_plain_ones() -> None:
    """A compiled loss that reads rounded logits twice trains on another one."""
    rng = torch.Generator("cuda").manual_seed(0)
    logits = [torch.randn(64, 5000, generator=rng, device="cuda").bfloat16() for _ in range(3)]
    labels = torch.randint(5000, (64,), generator=rng, device="cuda")
    weight = torch.rand(64, generator=rng, device="cuda")
    final, base, teacher = logits
    results = [
        losses((0.3, 0.7), base, final, teacher, labels, weight)
        for losses in (_fused_row_losses(), _row_losses)
    ]
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-2)
