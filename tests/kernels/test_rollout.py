"""The Domino rollout kernels under Triton's interpreter, and the bound they rest on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from domino_kernels.rollout_bounds import bound_rows
from domino_kernels.rollout_reference import rollout_reference
from tests.kernels.recorded_head import recorded_head

# Another process: Triton reads TRITON_INTERPRET when it is first imported.
INTERPRETED = """
import sys
import torch
from tests.kernels.recorded_head import recorded_head, tied
from domino_kernels.rollout import DominoRollout

weights, lm_head, embedding, hidden, current, expected = recorded_head()
for mode, pool in ((0, 0), ("certified", 0), (5, 5), (64, 64), (257, 257)):
    for table in (True, False):
        run = DominoRollout(weights, lm_head, embedding, mode, 3, proposals=7, input_table=table)
        wanted = expected[f"sglang.pool{pool}"]
        assert torch.equal(run.run(hidden, current), wanted), (mode, table)
        assert torch.equal(run.run(hidden[1:2], current[1:2]), wanted[1:2]), (mode, table, "B1")
many = 22  # more requests than one tile holds
for table in (True, False):
    run = DominoRollout(weights, lm_head, embedding, 0, 3 * many, proposals=7, input_table=table)
    found = run.run(hidden.repeat(many, 1, 1), current.repeat(many))
    assert torch.equal(found, expected["sglang.pool0"].repeat(many, 1)), (table, "B66")
same = torch.zeros_like(lm_head)
for mode in (0, "certified", 64):
    ids = DominoRollout(tied(weights), same, embedding, mode, 3, proposals=7).run(hidden, current)
    assert mode == 64 or not ids.any(), (mode, ids)
print("done")
"""


def test_kernels_repeat_the_recorded_rollouts() -> None:
    """Guards every kernel of modes 0, certified and K against SGLang's recorded proposals."""
    pytest.importorskip("triton")
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(["kernels", "protos/gen", "."]),
    }
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "done"


@pytest.mark.parametrize("pool", [0, 5, 64])
def test_reference_repeats_the_recorded_rollouts(pool: int) -> None:
    """Guards the oracle itself: the float64 reference gives SGLang's recorded proposals."""
    weights, lm_head, embedding, hidden, current, expected = recorded_head()
    trace = rollout_reference(
        weights, lm_head, embedding, hidden, current, accumulate=torch.float64, pool=pool
    )
    assert torch.equal(trace.ids, expected[f"sglang.pool{pool}"])


@pytest.mark.parametrize("kind", ["spread", "flat", "huge", "tiny", "outlier", "constant"])
def test_bounds_hold_every_score(kind: str) -> None:
    """A bound below a true score would let the certified mode drop the winner."""
    rng = torch.Generator().manual_seed(5)
    w2 = torch.randn(301, 48, generator=rng) + 3 * torch.randn(48, generator=rng)
    if kind == "spread":
        w2 *= torch.logspace(0, -3, 48)
    if kind == "outlier":
        w2[7] *= 1000
    if kind == "constant":
        w2 = w2[:1].expand(301, 48).contiguous()
    w2 *= {"huge": 1e6, "tiny": 1e-6}.get(kind, 1.0)
    s = torch.randn(32, 48, generator=rng).double()
    mean = w2.double().mean(0).float().double()
    for levels, weight, steps in ((127, 100.0, 16192), (31, 33.0, 127)):
        rows = bound_rows(w2, tile=128, width=64, levels=levels, error_weight=weight)
        step = s.abs().amax(1, keepdim=True) / steps
        rounded = (s / step).round() * step
        q = rows.q[:301, :48].double() * rows.scale[:301, None].double()
        error = (s @ (w2.double() - mean).T - rounded @ q.T).abs()
        reach = s.norm(dim=1, keepdim=True) + weight * (s - rounded).norm(dim=1, keepdim=True)
        assert bool((error <= rows.slack[:301].double() * reach).all())
        assert rows.q.abs().max() <= levels
        assert not rows.q[301:].any() and not rows.q[:, 48:].any()


def test_what_does_not_fit_is_refused_by_name() -> None:
    """A head of another target must be named, not read past its end."""
    weights, lm_head, _, _, _, _ = recorded_head()
    with pytest.raises(ValueError, match=r"w2 is \(257, 16\)"):
        weights.check(lm_head[:200], lm_head)
    with pytest.raises(ValueError, match="embedding"):
        weights.check(lm_head, lm_head[:100])
    with pytest.raises(ValueError, match="use one dtype"):
        weights.check(lm_head.half(), lm_head.half())
