"""Where a run's figures go: metrics.jsonl, TensorBoard where asked for, and how busy the GPU is."""

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from training.errors import TrainingError

METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"


class Watch:
    """A context manager; lines of figures, each with its `step`, are there once added."""

    def __init__(self, folder: Path | None, *, tensorboard: bool) -> None:
        """Without a folder nothing is kept: one of several ranks does it for all.

        Raises TrainingError when TensorBoard is asked for and not installed.
        """
        self._board = _writer(folder / TENSORBOARD) if tensorboard and folder else None
        self._lines = _opened(folder / METRICS) if folder else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        if self._lines:
            self._lines.close()
        if self._board:
            self._board.close()

    def add(self, line: Mapping[str, Any]) -> None:
        """Writes a line at once, whole; raises TrainingError when the disk is full."""
        if self._lines:
            _append(self._lines, json.dumps(line).encode() + b"\n")
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


def _opened(file: Path) -> FileIO:
    """To append to; half a line, which a killed process or a full disk may leave, is cut off."""
    found = FileIO(file, "a+")
    found.seek(0)
    found.truncate(found.readall().rfind(b"\n") + 1)
    return found


def _append(file: FileIO, line: bytes) -> None:
    size = os.fstat(file.fileno()).st_size
    try:
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        file.truncate(size)
        remedy = "free space, then the same command goes on"
        raise TrainingError(f"{file.name} could not be written: {error}; {remedy}") from error


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError(
            f"tensorboard: {error}; install the extra domino-serve[tensorboard], or set it to false"
        ) from error
    return SummaryWriter(str(folder))


class Speed:
    """Of this process's own steps, which a resumed run has fewer of than the run. The first one,
    which compiles and allocates, is left out as soon as there is another."""

    def __init__(self, first: int, total: int) -> None:
        self._first, self._total, self._began = first, total, time.monotonic()
        self.first_s: float | None = None

    def steps_per_s(self, step: int) -> float:
        """Is asked behind every step."""
        took, steps = time.monotonic() - self._began, step - self._first
        if self.first_s is None:
            self.first_s = took
        if steps == 1:
            return 1 / took
        return (steps - 1) / (took - self.first_s)

    def eta_s(self, step: int) -> float:
        """Seconds left."""
        return (self._total - step) / self.steps_per_s(step)


def shown(evaluation: dict[str, Any]) -> str:
    """An evaluation in a line for people."""
    figures = evaluation["workloads"].items()
    lengths = " ".join(f"{name} {f['acceptance_length']:.3f}" for name, f in figures)
    base = f" base_macro {b:.3f}" if (b := evaluation.get("base_acceptance_macro")) else ""
    return f"acceptance {lengths} macro {evaluation['acceptance_macro']:.3f}{base}"


def progress(line: dict[str, float], total: int) -> str:
    """One line for people."""
    eta = timedelta(seconds=round(line["eta_s"]))
    return (
        f"step {line['step']:.0f}/{total} loss {line['loss']:.4f} "
        f"final {line.get('final_loss', 0):.4f} base {line.get('base_loss', 0):.4f} "
        f"acc {line['accuracy']:.4f} base_acc {line['base_accuracy']:.4f} "
        f"accept_len {line['accept_len']:.3f} base_accept_len {line['base_accept_len']:.3f} "
        f"lambda {line['lambda']:.3f} lr {line['lr']:.2e} grad_norm {line['grad_norm']:.3f} "
        f"{line['steps_per_s']:.2f} steps/s eta {eta}"
    )
