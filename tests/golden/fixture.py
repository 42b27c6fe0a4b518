"""A fixture folder: config and weights, recorded inputs, recorded outputs."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from domino_kernels.attention import Batch, Span
from draft_service.tables import Tables, read_tables
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_format import load_draft_config
from serving.draft_tensors import draft_tensor_name
from serving.target_config import TargetConfig, open_target

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

    @property
    def folder(self) -> Path:
        """Where the config and weights are; the recordings beside them are not part of it."""
        return self.path if (self.path / "config.json").exists() else self.path.parent

    def target(self) -> tuple[Checkpoint, TargetConfig]:
        """The frozen target every draft fixture refers to."""
        folder = next(p / TARGET for p in self.path.parents if (p / TARGET).is_dir())
        return open_target(folder)

    def draft(self) -> tuple[Checkpoint, DraftConfig]:
        """The fixture's draft, checked against the target by its config (f3 is a head alone)."""
        checkpoint = Checkpoint(self.folder, rename=draft_tensor_name)
        return checkpoint, load_draft_config(checkpoint, self.target()[1])

    def tables(self) -> Tables:
        """Embedding and head: the draft's own or the target's."""
        (checkpoint, config), (target, sizes) = self.draft(), self.target()
        return read_tables(config, checkpoint, sizes, target, dtype=FLOAT32, device=CPU)


def _read(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118


def one_span(start: int, count: int, pages: int = 8) -> Batch:
    """A batch of one sequence whose pages are 0..pages-1."""
    return Batch([Span(start=start, count=count, pages=range(pages))], PAGE_SIZE, CPU)
