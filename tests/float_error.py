"""How far float32 logits may be from the exact ones: as far as transformers' own, or 1e-4."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 1e-4


def exact_logits(oracle: Any, ids: Tensor) -> Tensor:
    """ids [n] -> logits [n, vocab] of a transformers model in float64."""
    logits: Tensor = deepcopy(oracle).double()(ids[None]).logits[0]
    return logits


def assert_as_exact_as(theirs: Tensor, exact: Tensor, ours: Tensor) -> None:
    """Both sum in float32, each in its own order: on some prompts the last bits grow to 4e-4.

    A comparison of the two alone would have to allow the errors of both.
    """
    allowed = max(TOLERANCE, 3 * float((theirs - exact).abs().max()))
    torch.testing.assert_close(ours.double(), exact, atol=allowed, rtol=0)
