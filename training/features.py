"""What the frozen target says of packed rows: tapped layer outputs and, if asked, its last state.

Either kept for every row in the device's memory or on disk, or computed anew for each batch.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.dataset import PackedRows
from training.feature_file import FeatureFile
from training.rows import Rows
from training.target import BatchTarget

TOKENS_PER_PASS = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSize:
    """Bytes that the features of some rows take."""

    rows: int
    tokens: int
    width: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return self.rows * self.tokens * self.width * self.dtype.itemsize


class Features:
    """Rows with features; `keep` computes all of them now, once."""

    def __init__(
        self, target: BatchTarget, packed: PackedRows, *, taps: int, keep: bool, last: bool
    ) -> None:
        self._target, self._packed, self._with_last = target, packed, last
        self._width = taps * target.config.hidden_size
        self._documents = packed.documents[packed.documents[:, 2].argsort()]
        self._all = self._compute(torch.arange(len(packed))) if keep else None
        self._stored: Tensor | None = None

    def key(self) -> str:
        """Of what these are the features: the tokens, the documents, the target and its taps."""
        found = hashlib.sha256(self._target.checkpoint.content_hash().encode())
        found.update(repr((self._target.taps, self._with_last)).encode())
        for tensor in (self._packed.ids, self._packed.starts, self._packed.documents):
            found.update(tensor.contiguous().numpy().tobytes())
        return found.hexdigest()

    def on_disk(self, folder: Path) -> FeatureFile:
        """Where they are or would be; `read_from` it once it is there."""
        size = self.size
        return FeatureFile(folder, (size.rows, size.tokens, size.width), size.dtype, self.key())

    def read_from(self, file: FeatureFile) -> None:
        """Takes batches from the file, which is written first where it is not whole."""
        if not file.is_whole:
            stored = None
            for index in file.parts():
                stored = file.map() if stored is None else stored
                rows = self._compute(index)
                parts = [rows.features] if rows.last is None else [rows.features, rows.last]
                stored[index] = torch.cat(parts, -1).cpu()
        self._stored = file.map()

    @property
    def size(self) -> FeatureSize:
        """What keeping all rows takes."""
        width = self._width + self._with_last * self._target.config.hidden_size
        rows, tokens = self._packed.ids.shape
        return FeatureSize(rows=rows, tokens=tokens, width=width, dtype=self._target.dtype)

    def a_document(self) -> tuple[int, int, int]:
        """Row, first column and length of one of the longest documents, as far back as any."""
        documents = self._documents[-max(1, len(self._documents) // 10) :]
        row, first, length = documents[documents[:, 0].argmax()].tolist()
        return row, first, length

    def empty(self, rows: int) -> Rows:
        """Memory for a batch, to be filled."""
        return self._empty(rows)

    def fill(self, batch: Rows, index: Tensor) -> None:
        """Puts the rows `index` [R] (on the CPU) into the memory of `batch`."""
        found = self._all
        if self._stored is not None:
            return self._fill_from(self._stored, batch, index)
        if found is None:
            found, index = self._compute(index), torch.arange(len(index))
        index = index.to(self._target.device)
        for name in ("ids", "supervised", "starts", "features", "last"):
            source, place = getattr(found, name), getattr(batch, name)
            if source is not None:
                torch.index_select(source, 0, index, out=place)

    def _fill_from(self, stored: Tensor, batch: Rows, index: Tensor) -> None:
        values = stored[index]
        batch.features.copy_(values[..., : self._width])
        if batch.last is not None:
            batch.last.copy_(values[..., self._width :])
        for name in ("ids", "supervised", "starts"):
            getattr(batch, name).copy_(getattr(self._packed, name)[index])

    @torch.no_grad()
    def _compute(self, index: Tensor) -> Rows:
        """The rows' documents through the target, those of like length together."""
        packed, device = self._packed, self._target.device
        out = self._empty(len(index))
        out.ids.copy_(packed.ids[index])
        out.supervised.copy_(packed.supervised[index])
        out.starts.copy_(packed.starts[index])
        place = torch.full((len(packed),), -1)
        place[index] = torch.arange(len(index))
        wanted = self._documents[place[self._documents[:, 0]] >= 0]
        first = 0
        while first < len(wanted):
            longest = int(wanted[min(first + TOKENS_PER_PASS // 64, len(wanted)) - 1, 2])
            part = wanted[first : first + max(1, TOKENS_PER_PASS // longest)]
            first += len(part)
            rows, columns, lengths = part.to(device).unbind(1)
            steps = torch.arange(int(part[:, 2].max()), device=device)
            real = steps < lengths[:, None]
            begin = place.to(device)[rows] * packed.ids.shape[1] + columns
            to = (begin[:, None] + steps).clamp(max=out.ids.numel() - 1)
            x, taps = self._target.prompt(out.ids.flatten()[to] * real)
            to = to[real]
            out.features.flatten(0, 1)[to] = taps[real]
            if out.last is not None:
                out.last.flatten(0, 1)[to] = self._target.normed(x[real])
        return out

    def _empty(self, rows: int) -> Rows:
        length = self._packed.ids.shape[1]
        device, dtype = self._target.device, self._target.dtype

        def memory(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, length, *shape, dtype=dtype, device=device)

        hidden = self._target.config.hidden_size
        return Rows(
            ids=memory(dtype=torch.int64),
            supervised=memory(dtype=torch.bool),
            starts=memory(dtype=torch.int64),
            features=memory(self._width, dtype=dtype),
            last=memory(hidden, dtype=dtype) if self._with_last else None,
        )
