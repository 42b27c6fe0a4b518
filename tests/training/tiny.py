"""The recorded tiny target as training uses it, and prompts for it."""

import torch

from tests.recorded_models import PROMPTS, TARGET
from training.target import BatchTarget

CPU = torch.device("cpu")


def target(taps: tuple[int, ...] = (1, 2, 4)) -> BatchTarget:
    """float32 on the CPU."""
    return BatchTarget.load(TARGET, taps=taps, dtype=torch.float32, device=CPU)


__all__ = ["CPU", "PROMPTS", "target"]
