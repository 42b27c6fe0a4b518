"""A checkpoint folder in, its stored tensors out: one safetensors file, or shards with an index.

Only headers are read. Every tensor must be where the index says, and in one file only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import CheckpointError
from serving.json_file import read_json_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SELF_TEST_FILE = "self_test.safetensors"  # of a draft, no weights: verify_service.recorded_test
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is; dtype as safetensors spells it ("F32", "BF16"), bytes in the file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    end: int


def stored_tensors(files: list[Path]) -> dict[str, StoredTensor]:
    """Every tensor of the files by its stored name."""
    found: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _read_header(file):
            if tensor.name in found:
                raise CheckpointError(
                    f"{file}: tensor {tensor.name} is also in {found[tensor.name].file.name}; "
                    "keep one of them"
                )
            found[tensor.name] = tensor
    return found


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, empty when there are none."""
    index, single = folder / INDEX_FILE, folder / SINGLE_FILE
    if index.exists():
        if single.exists() and SINGLE_FILE not in _weight_map(index).values():
            raise CheckpointError(
                f"{folder}: has {SINGLE_FILE} and {INDEX_FILE} for other files; remove one of them"
            )
        return [folder / name for name in sorted(set(_weight_map(index).values()))]
    if single.exists():
        return [single]
    return sorted(f for f in folder.glob("*.safetensors") if f.name != SELF_TEST_FILE)


def check_index(folder: Path, found: Mapping[str, StoredTensor]) -> None:
    """Raises CheckpointError when a tensor is not in the file the index names."""
    index = folder / INDEX_FILE
    if not index.exists():
        return
    for name, file in _weight_map(index).items():
        if name not in found or found[name].file.name != file:
            raise CheckpointError(f"{index}: tensor {name} should be in {file} and is not there")


def other_formats(folder: Path) -> list[str]:
    """Names of weight files that are not read."""
    return sorted(file.name for pattern in OTHER_FORMATS for file in folder.glob(pattern))


def _weight_map(index: Path) -> dict[str, str]:
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: weight_map must be an object of tensor and file names")
    for file in names.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"{index}: weight_map names {file!r}, which is no file name")
        if not (index.parent / file).exists():
            raise CheckpointError(f"{index}: names {file}, which is missing; download it again")
    return names


def _read_header(file: Path) -> list[StoredTensor]:
    """Tensors of a safetensors file (8 bytes of length, then JSON), checked against its size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"{file}: truncated (header of {length} bytes, file of {size})")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            found = [_tensor(file, 8 + length, name, entry) for name, entry in header.items()]
        except (ValueError, AttributeError, KeyError, TypeError):
            raise CheckpointError(f"{file}: not a safetensors file (unreadable header)") from None
    end = max((tensor.end for tensor in found), default=8 + length)
    if end != size:
        raise CheckpointError(f"{file}: truncated or damaged ({size} bytes, header promises {end})")
    return found


def _tensor(file: Path, data: int, name: str, entry: dict[str, Any]) -> StoredTensor:
    first, last = entry["data_offsets"]
    shape = tuple(int(n) for n in entry["shape"])
    return StoredTensor(file, name, shape, entry["dtype"], data + first, data + last)
