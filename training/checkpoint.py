"""A run's state on disk: iter_NNNNNNN folders, named by completed optimizer steps, and a tracker.

A folder appears whole or not at all: it is written beside its place, synced, then renamed, and only
then does the tracker move. A resumed run is the run that was never interrupted.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.errors import TrainingError

TRACKER = "latest_checkpointed_iteration.txt"
MODEL, OPTIMIZER, META = "model.safetensors", "optimizer.safetensors", "meta.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """masters: float32 weights by name. optimizer: its tensors by name, empty where not saved.
    meta: {"step", "config", ...}."""

    masters: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    meta: Mapping[str, Any]


def save(run: Path, state: State, *, keep: int) -> Path:
    """Writes iter_<step>, moves the tracker, then removes all but the newest `keep`.

    Raises TrainingError when the disk is full; what was there before stays as it was.
    """
    step = int(state.meta["step"])
    place = run / f"iter_{step:07d}"
    partial = run / f".{place.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        save_file(_on_cpu(state.masters), partial / MODEL)
        if state.optimizer:
            save_file(_on_cpu(state.optimizer), partial / OPTIMIZER)
        (partial / META).write_text(json.dumps(state.meta, indent=1) + "\n")
        for file in partial.iterdir():
            _sync(file)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
        _track(run, step)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainingError(f"checkpoint {place} could not be written: {error}") from error
    for old in sorted(iterations(run))[:-keep]:
        if old != step:
            shutil.rmtree(run / f"iter_{old:07d}")
    return place


def load(run: Path) -> State | None:
    """The tracked state; None where the run has none yet.

    Raises TrainingError where the tracker names a folder that is missing, partial or damaged, with
    the steps that are there.
    """
    tracker = run / TRACKER
    if not tracker.exists():
        return None
    text = tracker.read_text().strip()
    place = run / f"iter_{text:0>7}"
    try:
        meta = json.loads((place / META).read_text())
        masters = load_file(place / MODEL)
        optimizer = load_file(place / OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        there = ", ".join(map(str, sorted(iterations(run)))) or "none"
        raise TrainingError(
            f"{tracker} names {text}, which cannot be resumed ({error}); there are: {there}. "
            "Write one of them into the tracker, or remove it to start anew"
        ) from error
    return State(masters=masters, optimizer=optimizer, meta=meta)


def iterations(run: Path) -> list[int]:
    """Completed steps of the checkpoints that are there."""
    return [int(p.name.removeprefix("iter_")) for p in run.glob("iter_" + "[0-9]" * 7)]


def refuse_other_run(saved: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raises TrainingError naming the first setting that a resumed run must not change."""
    for name, value in saved.items():
        if name in config and config[name] != value:
            raise TrainingError(
                f"{name}: {config[name]!r}, but this run was started with {value!r}; set it back, "
                "or choose another output and start from the weights with init"
            )


def flatten(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The optimizers' tensors by name: which optimizer, which weight, which moment."""
    return {
        f"{i}.{index}.{key}": value
        for i, optimizer in enumerate(optimizers)
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }


def restore(optimizers: Sequence[torch.optim.Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Puts `flatten`'s tensors back."""
    for i, optimizer in enumerate(optimizers):
        whole = optimizer.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            owner, index, key = name.split(".")
            if int(owner) == i:
                state.setdefault(int(index), {})[key] = value
        optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


def live_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    """The optimizers' moments and counters themselves."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return [v for state in states for v in state.values() if isinstance(v, Tensor)]


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _track(run: Path, step: int) -> None:
    partial = run / f".{TRACKER}.partial"
    partial.write_text(f"{step}\n")
    _sync(partial)
    partial.replace(run / TRACKER)
    _sync(run)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
