"""Kind `training`: anchors, masks, labels, losses, gradients of one recorded batch (f5)."""

import json
import re
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.draft_config import LayerAttention
from serving.draft_tensors import draft_tensors
from tests.golden.fixture import FLOAT32, Fixture
from tests.golden.run_dspark import run_dspark
from training.cross_entropy import Head
from training.curriculum import base_share
from training.domino import UP, bottleneck, previous_ids
from training.draft import DraftForward
from training.labels import make_labels
from training.objective import Objective
from training.rows import Anchors, Rows, candidates, choose_anchors, one_document
from training.visibility import dense_mask, visible

Tensors = dict[str, Tensor]
GRADIENT_NORMS, CURRICULUM = "grad_norms.json", "lambda.json"


class Recorded:
    """One fixture's batch, the draft and its weights as leaves with gradients."""

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        checkpoint, self.config = fixture.draft()
        target, sizes = fixture.target()
        table = (sizes.vocab_size, sizes.hidden_size)
        self.lm_head = target.tensor(sizes.lm_head_name, table, FLOAT32)
        embedding = target.tensor("model.embed_tokens.weight", table, FLOAT32)
        self.draft = DraftForward(self.config, embedding)
        self.weights = {
            name: checkpoint.tensor(name, shape, FLOAT32).requires_grad_()
            for name, shape in draft_tensors(self.config).items()
        }
        inputs = fixture.inputs
        self.rows: Rows = one_document(
            inputs["input_ids"], inputs["loss_mask"].bool(), inputs["features"]
        )
        eligible = candidates(self.rows.supervised, self.rows.starts)
        count = int(inputs["num_anchors"])
        self.anchors: Anchors = choose_anchors(inputs["anchor_uniform"], eligible, count)
        assert torch.equal(self.anchors.columns, inputs["anchors"])
        assert torch.equal(self.anchors.live, inputs["keep"])

    def objective(self, gamma: float | None) -> Objective:
        return Objective(draft=self.draft, head=Head(lm_head=self.lm_head, chunk=32), gamma=gamma)


def run_training(fixture: Fixture) -> Tensors:
    """Every recorded tensor of the batch and of its runs; f6 records a DSpark block instead."""
    if "k0.block_ids" in fixture.inputs:
        return run_dspark(fixture)
    recorded = Recorded(fixture)
    out = _forward(recorded)
    for run in sorted({m[1] for n in fixture.expected if (m := re.match(r"(.*)\.loss$", n))}):
        out |= {f"{run}.{name}": value for name, value in _run(recorded, run).items()}
    return out


def _forward(recorded: Recorded) -> Tensors:
    config, rows, anchors = recorded.config, recorded.rows, recorded.anchors
    size = config.block_size
    full, sliding = (
        dense_mask(visible(anchors, rows.starts, size, rule))
        for rule in (LayerAttention(), LayerAttention(causal=True, window=6))
    )
    context = torch.arange(rows.ids.shape[1]).expand(len(rows.ids), -1)
    labels = make_labels(rows, anchors, block_size=size, shift=config.shift_label, gamma=None)
    hidden = recorded.draft.hidden(recorded.weights, rows, anchors).detach()
    base = F.linear(hidden, recorded.lm_head)
    out = {
        "attention_mask": full,
        "sliding6_mask": sliding,
        "position_ids": torch.cat([context, anchors.positions(0, size).flatten(1)], 1),
        "noise_ids": recorded.draft.noise_ids(rows, anchors).flatten(1),
        "labels": labels.ids,
        "eval_mask": labels.counts.float(),
        "hidden": hidden,
        "base_logits": base,
    }
    if config.domino is None:
        return out
    previous = previous_ids(rows, anchors, size)
    small = bottleneck(config, recorded.weights, hidden, previous, recorded.draft.embedding)
    final = base + F.linear(small, recorded.weights[UP]).detach()
    return out | {"prev_ids": previous, "final_logits": final}


def _run(recorded: Recorded, run: str) -> Tensors:
    """gamma4: DFlash with that decay; lambda0.5_gammaNone: Domino with that base share."""
    share, gamma = _settings(run)
    objective = recorded.objective(gamma)
    for weight in recorded.weights.values():
        weight.grad = None
    anchors, rows = recorded.anchors, recorded.rows
    sums = objective.sums(recorded.weights, rows, anchors, torch.tensor(share))
    loss = sums.loss / sums.weight
    loss.backward()  # type: ignore[no-untyped-call]
    config = recorded.config
    labels = make_labels(
        rows, anchors, block_size=config.block_size, shift=config.shift_label, gamma=gamma
    )
    counts = objective.measure(recorded.weights, rows, anchors)
    found = counts.figures()
    scalars = {
        "loss": loss.detach(),
        "loss_num": sums.loss.detach(),
        "loss_den": sums.weight,
        "final_loss": sums.final / sums.weight,
        "base_loss": sums.base / sums.weight,
        "accuracy_denom": counts.scored.float(),
        **{name: torch.tensor(value) for name, value in found.items()},
    }
    gradients = {f"grad.{n}": w.grad for n, w in recorded.weights.items() if w.grad is not None}
    return (
        {name: value.view(1) for name, value in scalars.items()}
        | gradients
        | {"loss_weights": labels.weights}
    )


def _settings(run: str) -> tuple[float, float | None]:
    share = re.search(r"lambda([\d.]+)", run)
    gamma = re.search(r"gamma(\w+)", run)
    if gamma is None:
        return float(share[1]) if share else 0.0, 7.0
    return (
        float(share[1]) if share else 0.0,
        None if gamma[1] == "None" else float(gamma[1]),
    )


def run_training_json(fixture: Fixture) -> dict[str, tuple[list[float], list[float]]]:
    """By file and run: our values and the recorded ones, in the same order."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    recorded = Recorded(fixture)
    norms: dict[str, dict[str, float]] = json.loads((fixture.path / GRADIENT_NORMS).read_text())
    for run, expected in norms.items():
        ours = _run(recorded, run)
        values = [float(ours[f"grad.{name}"].norm()) for name in expected]
        found[f"{GRADIENT_NORMS}:{run}"] = values, list(expected.values())
    file = fixture.path / CURRICULUM
    if file.exists():
        cases: list[dict[str, Any]] = json.loads(file.read_text())
        values = [
            base_share(c["step"], c["total"], start=c["start"], ratio=c["ratio"]) for c in cases
        ]
        found[CURRICULUM] = values, [c["value"] for c in cases]
    return found
