"""A run's state on disk: iter_NNNNNNN folders, named by completed optimizer steps, and a tracker.

A folder appears whole or not at all: it is written beside its place, synced, then renamed, and only
then does the tracker move. A resumed run is the run that was never interrupted.
"""

import hashlib
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
WHOLE = "whole"
FULL = "the one before stays; free space, then the same command goes on behind it"


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
    place = write(run / f"iter_{step:07d}", state)
    try:
        _track(run, step)
    except OSError as error:
        raise TrainingError(f"{run / TRACKER} could not be written: {error}; {FULL}") from error
    for old in sorted(iterations(run))[:-keep]:
        if old != step:
            shutil.rmtree(run / f"iter_{old:07d}")
    return place


def write(place: Path, state: State) -> Path:
    """A folder that is there as a whole or not at all; raises TrainingError when it cannot be."""
    partial = place.parent / f".{place.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        save_file(_on_cpu(state.masters), partial / MODEL)
        if state.optimizer:
            save_file(_on_cpu(state.optimizer), partial / OPTIMIZER)
        hashes = {file.name: _hash(file) for file in sorted(partial.iterdir())}
        meta = {**state.meta, "sha256": hashes}
        (partial / META).write_text(json.dumps(meta, indent=1) + "\n")
        for file in partial.iterdir():
            _sync(file)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainingError(f"checkpoint {place} could not be written: {error}; {FULL}") from error
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


def verify(run: Path) -> dict[str, str]:
    """Every checkpoint of a run by name: "whole", or what is wrong with it.

    Raises TrainingError where there is none, or the tracker names none that is whole.
    """
    found = {f"iter_{i:07d}": _fault(run / f"iter_{i:07d}") for i in sorted(iterations(run))}
    if not found:
        raise TrainingError(f"{run}: has no checkpoint (iter_NNNNNNN); give the folder of a run")
    tracked = "iter_" + _tracked(run).rjust(7, "0")
    if found.get(tracked) != WHOLE:
        state = found.get(tracked, "missing")
        there = "; ".join(f"{name} {fault}" for name, fault in found.items())
        raise TrainingError(
            f"{run / TRACKER} names {tracked}, which is {state}; there are: {there}"
        )
    return found


def _tracked(run: Path) -> str:
    try:
        return (run / TRACKER).read_text().strip()
    except OSError as error:
        raise TrainingError(f"{run}: has no {TRACKER}: {error}") from error


def _fault(place: Path) -> str:
    try:
        meta = json.loads((place / META).read_text())
        for name, expected in meta.get("sha256", {}).items():
            if _hash(place / name) != expected:
                return f"damaged: {name} is not what was written"
        load_file(place / MODEL)
    except (OSError, ValueError, SafetensorError) as error:
        return f"damaged: {error}"
    return WHOLE


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
