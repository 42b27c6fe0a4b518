"""Where a run's figures go: metrics.jsonl, TensorBoard where asked for, and how busy the GPU is."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from training.errors import TrainingError

METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"


class Watch:
    """A context manager; lines of figures, each with its `step`, are there once added."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        """Raises TrainingError when TensorBoard is asked for and not installed."""
        self._board = _writer(folder / TENSORBOARD) if tensorboard else None
        self._lines = (folder / METRICS).open("a")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._lines.close()
        if self._board:
            self._board.close()

    def add(self, line: Mapping[str, Any]) -> None:
        """Writes a line at once."""
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        if self._board:
            for name, value in scalars(line):
                self._board.add_scalar(name, value, int(line["step"]))


def scalars(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of a line by path; lists hold one number a position, counted from 1."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            yield from ((f"{prefix}{name}/{i}", float(v)) for i, v in enumerate(value, 1))
        elif not isinstance(value, str) and name != "step":
            yield f"{prefix}{name}", float(value)


def gpu_figures(device: torch.device) -> dict[str, float]:
    """Most memory so far in GB and, where its library is there, the share of time it computed."""
    if device.type != "cuda":
        return {}
    found = {"gpu_memory_gb": torch.cuda.max_memory_allocated(device) / 1e9}
    with suppress(ModuleNotFoundError, RuntimeError):  # torch reads it by pynvml
        found["gpu_use"] = torch.cuda.utilization(device) / 100
    return found


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError(
            f"tensorboard: {error}; install the extra domino-serve[tensorboard], or set it to false"
        ) from error
    return SummaryWriter(str(folder))
