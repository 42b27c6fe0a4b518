"""Token documents with their loss masks: on disk as one folder, in memory packed into rows."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.errors import TrainingError

TENSORS, ABOUT = "tokens.safetensors", "dataset.json"


@dataclass(frozen=True, slots=True)
class Document:
    """ids [n] int32; supervised [n] bool: the tokens to be predicted."""

    ids: Tensor
    supervised: Tensor

    @classmethod
    def of(cls, ids: Sequence[int], supervised: Sequence[bool]) -> "Document":
        return cls(torch.tensor(ids, dtype=torch.int32), torch.tensor(supervised))

    @property
    def has_anchor(self) -> bool:
        """Whether two neighbouring tokens are supervised."""
        return bool((self.supervised[1:] & self.supervised[:-1]).any())


def write_dataset(folder: Path, documents: Iterable[Document], about: dict[str, Any]) -> None:
    """Replaces `folder`'s dataset; `about` says where it came from and what was dropped.

    Raises TrainingError when there is nothing to learn, or when the disk is full.
    """
    kept = list(documents)
    if not kept:
        raise TrainingError("dataset: no document is left; nothing to train on")
    tensors = {
        "ids": torch.cat([d.ids for d in kept]),
        "supervised": torch.cat([d.supervised for d in kept]).to(torch.uint8),
        "lengths": torch.tensor([len(d.ids) for d in kept]),
    }
    facts = {
        "documents": len(kept),
        "tokens": sum(len(d.ids) for d in kept),
        "supervised": sum(int(d.supervised.sum()) for d in kept),
    }
    partial = folder / f".{TENSORS}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial)
        partial.replace(folder / TENSORS)
        (folder / ABOUT).write_text(json.dumps(about | facts, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise TrainingError(f"dataset {folder} could not be written: {error}") from error


def read_dataset(folder: Path) -> list[Document]:
    """Raises TrainingError where there is none, or a damaged one."""
    file = folder / TENSORS
    if not file.is_file():
        raise TrainingError(f"data: {folder} has no {TENSORS}; make it with `data prepare`")
    try:
        tensors = load_file(file)
        lengths = tensors["lengths"].tolist()
        ids, supervised = tensors["ids"], tensors["supervised"].bool()
    except (SafetensorError, KeyError) as error:
        raise TrainingError(f"data: {file} is damaged ({error}); prepare it again") from error
    parts = zip(ids.split(lengths), supervised.split(lengths), strict=True)
    return [Document(*part) for part in parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Documents laid end to end in rows of equal length.

    ids [n, S] int32, supervised [n, S] bool, starts [n, S] int16: column where the token's document
    begins, S for padding. documents [d, 3] int64: row, first column, length of each.
    """

    ids: Tensor
    supervised: Tensor
    starts: Tensor
    documents: Tensor

    def __len__(self) -> int:
        return len(self.ids)


def pack(documents: Sequence[Document], length: int, seed: int) -> PackedRows:
    """Best fit, longest first; rows in random order. Documents are cut at `length` tokens.

    Raises TrainingError when no document has an anchor.
    """
    cut = [Document(d.ids[:length], d.supervised[:length]) for d in documents]
    cut = sorted((d for d in cut if d.has_anchor), key=lambda d: -len(d.ids))
    if not cut:
        raise TrainingError("data: no document has two supervised tokens in a row")
    places = _places([len(d.ids) for d in cut], length)
    count = max(row for row, _ in places) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    ids = torch.zeros(count, length, dtype=torch.int32)
    supervised = torch.zeros(count, length, dtype=torch.bool)
    starts = torch.full((count, length), length, dtype=torch.int16)
    for document, (row, first) in zip(cut, places, strict=True):
        part = order[row], slice(first, first + len(document.ids))
        ids[part], supervised[part], starts[part] = document.ids, document.supervised, first
    index = [[order[r], first, len(d.ids)] for d, (r, first) in zip(cut, places, strict=True)]
    return PackedRows(ids=ids, supervised=supervised, starts=starts, documents=torch.tensor(index))


def _places(lengths: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Row and first column of each, for lengths in descending order."""
    room: dict[int, list[int]] = defaultdict(list)  # rows by free columns
    rows, places = 0, []
    for length in lengths:
        free = next((f for f in range(length, size) if room[f]), size)
        row = room[free].pop() if free < size else rows
        rows += free == size
        places.append((row, size - free))
        room[free - length].append(row)
    return places
