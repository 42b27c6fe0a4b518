"""Features on disk: one file of all rows, mapped into memory, that later runs take up again.

Written once, whole or not at all; its key says of which data and which target it is.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from training.errors import TrainingError

FILE, ABOUT = "features.bin", "features.json"
ROWS_AT_A_TIME = 16
RESERVE = 1 << 30  # bytes of the disk that are left to checkpoints and others


class FeatureFile:
    """values [rows, tokens, width] of `dtype`, in `folder`."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], dtype: torch.dtype, key: str):
        self._folder, self._shape, self._dtype = folder, shape, dtype
        self._about = {"key": key, "shape": list(shape), "dtype": str(dtype)}
        self.bytes = torch.Size(shape).numel() * dtype.itemsize

    @property
    def is_whole(self) -> bool:
        """Whether it was written to its end, of this data and this target."""
        about = self._folder / ABOUT
        return about.is_file() and json.loads(about.read_text()) == self._about

    def describe(self) -> str:
        """What it takes, before a byte is written."""
        free = shutil.disk_usage(_existing(self._folder)).free
        state = "there already" if self.is_whole else f"{free / 1e9:.1f} GB free"
        return f"features on disk: {self.bytes / 1e9:.3f} GB in {self._folder}, {state}"

    def parts(self) -> Iterator[Tensor]:
        """Row numbers to be written, some at a time; raises TrainingError when the disk is full."""
        free = shutil.disk_usage(_existing(self._folder)).free
        if self.bytes + RESERVE > free:
            raise TrainingError(
                f"features: {self.bytes / 1e9:.1f} GB are needed in {self._folder}, "
                f'{free / 1e9:.1f} GB are free; take features = "online", or another output'
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / ABOUT).unlink(missing_ok=True)
        with (self._folder / FILE).open("wb") as file:
            file.truncate(self.bytes)
        yield from torch.split(torch.arange(self._shape[0]), ROWS_AT_A_TIME)
        (self._folder / ABOUT).write_text(json.dumps(self._about) + "\n")

    def map(self) -> Tensor:
        """The values, read and written through the page cache."""
        count = torch.Size(self._shape).numel()
        flat = torch.from_file(str(self._folder / FILE), shared=True, size=count, dtype=self._dtype)
        return flat.view(self._shape)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder
