"""A checkpoint folder (config.json, safetensors files), read strictly; torch only for a tensor.

Errors name the file, the tensor and what was expected, since a silent misreading costs acceptance
or correctness without any sign.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.errors import StartError

if TYPE_CHECKING:
    import torch

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HASH_CACHE_FILE = "hashes.json"


class CheckpointError(StartError):
    """A checkpoint cannot be used; the message names the file, field or tensor and the remedy."""


class Checkpoint:
    """A folder with config.json and one or several safetensors files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such folder; give the path of a checkpoint folder")
        self.config = self._read_config()
        self._files = self._list_files()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        self._file_of: dict[str, Path] = {}
        self._read: set[str] = set()
        for file in self._files:
            for name, entry in _read_header(file).items():
                self._shapes[name] = tuple(entry["shape"])
                self._dtypes[name] = entry["dtype"]
                self._file_of[name] = file

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return self._shapes

    @property
    def dtypes(self) -> dict[str, str]:
        """Stored dtype of every tensor as safetensors spells it ("F32", "BF16"), by name."""
        return self._dtypes

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """One tensor in `dtype`. Raises CheckpointError when it is missing or of another shape."""
        from safetensors import safe_open

        if name not in self._shapes:
            raise CheckpointError(f"{self.path}: tensor {name} is missing (expected shape {shape})")
        if self._shapes[name] != shape:
            raise CheckpointError(
                f"{self.path}: tensor {name} has shape {self._shapes[name]}, expected {shape}"
            )
        self._read.add(name)
        with safe_open(self._file_of[name], framework="pt") as file:
            return file.get_tensor(name).to(dtype)  # type: ignore[no-any-return]

    def refuse_unread(self, known: Iterable[str]) -> None:
        """Raises CheckpointError naming every tensor that was not read, `known` ones apart.

        Such a tensor is a part of the model that would be missing without any sign. `known` are
        the last parts of names.
        """
        endings = tuple(known)
        unread = [name for name in self._shapes if name not in self._read]
        if unknown := sorted(name for name in unread if not name.endswith(endings)):
            shown = ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
            raise CheckpointError(
                f"{self.path}: {len(unknown)} unknown tensors: {shown}; "
                "this format and its config.json have no place for them"
            )

    def content_hash(self) -> str:
        """sha256 over config.json and weight files; file hashes cached by path, size and mtime."""
        digest = hashlib.sha256()
        for file in [self.path / CONFIG_FILE, *self._files]:
            digest.update(f"{file.name}:{_file_hash(file)}\n".encode())
        return digest.hexdigest()

    def _read_config(self) -> dict[str, Any]:
        file = self.path / CONFIG_FILE
        try:
            config = json.loads(file.read_text())
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: {CONFIG_FILE} is missing") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: not valid JSON ({error})") from None
        if not isinstance(config, dict):
            raise CheckpointError(f"{file}: expected a JSON object")
        return config

    def _list_files(self) -> list[Path]:
        index, single = self.path / INDEX_FILE, self.path / SINGLE_FILE
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [self.path / name for name in names]
        elif single.exists():
            files = [single]
        else:
            files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{self.path}: no safetensors file (other formats are not read)")
        for file in files:
            if not file.exists():
                raise CheckpointError(f"{index}: names {file.name}, which is missing")
        return files


def _read_header(file: Path) -> dict[str, Any]:
    """Header of a safetensors file (8 bytes of length, then JSON), checked against its size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"{file}: truncated (header of {length} bytes, file of {size})")
        try:
            header = json.loads(stream.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise CheckpointError(f"{file}: not a safetensors file (unreadable header)") from None
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if 8 + length + end != size:
        raise CheckpointError(
            f"{file}: truncated or damaged ({size} bytes, header promises {8 + length + end})"
        )
    return dict(header)


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
    except OSError:
        temporary.unlink(missing_ok=True)  # a read-only home only costs hashing again
