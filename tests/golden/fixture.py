"""A fixture folder: config and weights, recorded inputs, recorded outputs."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from domino_kernels.attention import Batch, Span
from domino_kernels.linear import Linear
from draft_service.load import borrow
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig, load_draft_config
from serving.target_config import TargetConfig, load_target_config

CPU = torch.device("cpu")
FLOAT32 = torch.float32
PAGE_SIZE = 8
TARGET = "target_qwen3_tiny"


@dataclass(frozen=True)
class Fixture:
    """Weights and config may come from the parent folder (f2_dflash_generate/mask_emitted)."""

    path: Path

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Recorded inputs by name."""
        return _read(self.path / "inputs.safetensors")

    @property
    def expected(self) -> dict[str, Tensor]:
        """Recorded outputs by name."""
        return _read(self.path / "expected.safetensors")

    def checkpoint(self) -> Checkpoint:
        """The fixture's model folder; the recordings beside the weights are not part of it."""
        own = (self.path / "config.json").exists()
        return Checkpoint(self.path if own else self.path.parent)

    def target(self) -> tuple[TargetConfig, Checkpoint]:
        """The frozen target every draft fixture refers to."""
        folder = next(p / TARGET for p in self.path.parents if (p / TARGET).is_dir())
        checkpoint = Checkpoint(folder)
        return load_target_config(checkpoint), checkpoint

    def draft_config(self) -> DraftConfig:
        """The fixture's draft config, checked against the target."""
        target, _ = self.target()
        return load_draft_config(
            self.checkpoint(),
            target_layers=target.num_layers,
            target_vocab=target.vocab_size,
            target_hidden=target.hidden_size,
        )

    def borrowed(self) -> tuple[Tensor, Linear]:
        """Embedding and head of the target."""
        config, checkpoint = self.target()
        return borrow(checkpoint, config, dtype=FLOAT32, device=CPU)


def _read(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118


def one_span(start: int, count: int, pages: int = 8) -> Batch:
    """A batch of one sequence whose pages are 0..pages-1."""
    return Batch([Span(start=start, count=count, pages=range(pages))], PAGE_SIZE, CPU)
