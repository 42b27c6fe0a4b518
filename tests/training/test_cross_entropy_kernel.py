"""The fused losses under Triton's interpreter, against plain PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

# Another process: Triton reads TRITON_INTERPRET when it is first imported.
INTERPRETED = """
import torch
from domino_kernels import cross_entropy as fused
from training.cross_entropy import branch_losses_

generator = torch.Generator().manual_seed(0)
for vocab, final, teacher in ((5000, True, True), (4096, True, False), (37, False, False)):
    logits = [torch.randn(6, vocab, generator=generator) * 3 for _ in range(3)]
    labels = torch.randint(0, vocab, (6,), generator=generator)
    weights = torch.rand(2, 6, generator=generator)
    results = []
    for losses in (branch_losses_, fused.branch_losses_):
        base, last, other = (x.clone() for x in logits)
        out = torch.zeros(2, 6)
        parts = last if final else None, other if teacher else None
        losses(base, *parts, labels, *weights, *out, 0.3)
        results.append((base, last, out))
    for plain, kernel in zip(*results):
        torch.testing.assert_close(kernel, plain, atol=1e-5, rtol=1e-5)
print("done")
"""


def test_kernel_equals_plain_losses() -> None:
    """A lane lost at the vocabulary's end or a label read too late only trains a worse draft."""
    root = Path(__file__).parents[2]
    path = ":".join(str(root / part) for part in ("", "protos/gen", "kernels"))
    result = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        cwd=root,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert result.stdout.endswith("done\n"), result.stderr
