"""A checkpoint folder (config.json, safetensors files), read strictly; torch only for a tensor.

Errors name the file, the tensor and what was expected, since a silent misreading costs acceptance
or correctness without any sign.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import CheckpointError
from serving.json_file import read_json_object
from serving.weight_files import (
    StoredTensor,
    check_index,
    other_formats,
    stored_tensors,
    weight_files,
)

if TYPE_CHECKING:
    import torch

__all__ = ["Checkpoint", "CheckpointError", "cache_dir"]

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
HASH_CACHE_FILE = "hashes.json"
READ_BYTES = 1 << 24
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")


class Checkpoint:
    """A folder with config.json and one or several safetensors files.

    rename: stored name of a tensor -> the name it is asked for by.
    weights=False: a folder without weights, or a config file alone, is taken as well.
    """

    def __init__(
        self, path: Path, *, rename: Callable[[str], str] | None = None, weights: bool = True
    ) -> None:
        self.path = path
        self.name = path.resolve().name
        if not path.is_dir() and (weights or not path.is_file()):
            raise CheckpointError(f"{path}: no such folder; give the path of a checkpoint folder")
        if (path / ADAPTER_FILE).exists():
            raise CheckpointError(
                f"{path}: {ADAPTER_FILE} is there, and LoRA adapters cannot be served; "
                "merge the adapter into its base model and give that folder"
            )
        self.config_file = path / CONFIG_FILE if path.is_dir() else path
        self.config = read_json_object(self.config_file)
        self._files = weight_files(path)
        if not self._files and weights:
            raise CheckpointError(f"{path}: no safetensors file; {_remedy(path)}")
        self.tensors: dict[str, StoredTensor] = {}
        self._take_tensors(rename or str)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: stored.shape for name, stored in self.tensors.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """Stored dtype of every tensor as safetensors spells it ("F32", "BF16"), by name."""
        return {name: stored.dtype for name, stored in self.tensors.items()}

    def may_have(self, name: str) -> bool:
        """Whether a tensor is there; without any weights it may be."""
        return not self.tensors or name in self.tensors

    def require(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Where a tensor is. Raises CheckpointError when it is missing or of another shape."""
        stored = self.tensors.get(name)
        if stored is None:
            raise CheckpointError(f"{self.path}: tensor {name} is missing (expected shape {shape})")
        if stored.shape != shape:
            raise CheckpointError(
                f"{self.path}: tensor {stored.name} has shape {stored.shape}, expected {shape}"
            )
        return stored

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """One tensor in `dtype`. Raises CheckpointError when it is missing or of another kind."""
        from safetensors import safe_open

        stored = self.require(name, shape)
        if dtype.is_floating_point and stored.dtype not in FLOAT_DTYPES:
            raise CheckpointError(
                f"{self.path}: tensor {stored.name} is stored as {stored.dtype}, and quantised "
                f"weights cannot be served; use a checkpoint in {', '.join(FLOAT_DTYPES)}"
            )
        with safe_open(stored.file, framework="pt") as file:
            return file.get_tensor(stored.name).to(dtype)  # type: ignore[no-any-return]

    def digest(self, name: str) -> str:
        """sha256 of a tensor's stored bytes."""
        stored = self.tensors[name]
        digest = hashlib.sha256()
        with stored.file.open("rb") as stream:
            stream.seek(stored.start)
            while left := stored.end - stream.tell():
                digest.update(stream.read(min(left, READ_BYTES)))
        return digest.hexdigest()

    def content_hash(self) -> str:
        """sha256 over config.json and weight files; file hashes cached by path, size and mtime."""
        digest = hashlib.sha256()
        for file in [self.config_file, *self._files]:
            digest.update(f"{file.name}:{_file_hash(file)}\n".encode())
        return digest.hexdigest()

    def require_hash(self, sha256: str | None, option: str) -> None:
        """Raises CheckpointError when a content hash is given and the folder has another."""
        if sha256 is not None and (actual := self.content_hash()) != sha256:
            raise CheckpointError(
                f"{self.path}: its sha256 is {actual}, --{option} says {sha256}; it is another "
                "checkpoint or was changed (`domino-serve inspect` shows a folder's)"
            )

    def _take_tensors(self, rename: Callable[[str], str]) -> None:
        stored = stored_tensors(self._files)
        check_index(self.path, stored)
        for tensor in stored.values():
            name = rename(tensor.name)
            if name in self.tensors:
                raise CheckpointError(
                    f"{self.path}: tensors {self.tensors[name].name} and {tensor.name} both mean "
                    f"{name}; keep one of them"
                )
            self.tensors[name] = tensor


def _remedy(path: Path) -> str:
    others = other_formats(path)
    return f"convert {', '.join(others)} to safetensors" if others else "download the weights"


def cache_dir() -> Path:
    """Folder for converted models and file hashes: $DOMINO_SERVE_CACHE or ~/.cache/domino-serve."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("DOMINO_SERVE_CACHE", home / "domino-serve"))


def _file_hash(file: Path) -> str:
    stat = file.stat()
    key = f"{file.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    store = cache_dir() / HASH_CACHE_FILE
    try:
        known: dict[str, str] = json.loads(store.read_text())
    except (OSError, json.JSONDecodeError):
        known = {}
    if key not in known:
        with file.open("rb") as stream:
            known[key] = hashlib.file_digest(stream, "sha256").hexdigest()
        _save(store, known)
    return known[key]


def _save(store: Path, known: dict[str, str]) -> None:
    temporary = store.with_suffix(f".{os.getpid()}.tmp")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(known, indent=1))
        temporary.replace(store)
    except OSError:  # a read-only home only costs hashing again
        with suppress(OSError):
            temporary.unlink()
