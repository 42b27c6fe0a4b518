"""Executors on a CPU that do what those on one GPU do: a draft begins behind the target's step,
and the target's next step behind the draft's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from draft_service.executor import Part
from verify_service.accept import accept
from verify_service.early_rows import known_end
from verify_service.scheduler import Work
from verify_service.sequence import Chosen
from verify_service.sequence import Sequence as Running
from verify_service.width_policy import PlannedWidth


@dataclass
class EarlyTarget:
    """Tells what it chose as a verify step leaves it on the device; num_ahead: steps asked for that
    had been started as they were."""

    own: Any
    page_size: int
    launched: Any = None
    pretend: Any = None
    num_ahead: int = 0
    ahead: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def start(self, work: Sequence[Work]) -> Callable[[], list[Chosen]]:
        chosen = self.own.run(work)
        ahead, self.ahead, self.launched = self.ahead, None, None
        if ahead:
            items, proposals = ahead
            started = [
                (item.sequence, item.start, [item.ids[0], *ids[: len(item.ids) - 1]])
                for item, ids in zip(items, proposals.proposals, strict=True)
            ]
            steps = [item for item in work if item.choices == len(item.ids)]
            self.num_ahead += started == [(i.sequence, i.start, i.ids) for i in steps]
        ends = [(item, own) for item, own in zip(work, chosen, strict=True) if item.choices]
        if ends:
            self.launched = self._verified([item for item, _ in ends], [own for _, own in ends])
        return lambda: chosen

    def start_ahead(self, work: Sequence[Work], proposals: Any) -> None:
        self.ahead = work, proposals

    def _verified(self, work: Sequence[Work], chosen: Sequence[Chosen]) -> "Verified":
        width = max(item.choices for item in work)
        out = torch.zeros(len(work), width + 2, dtype=torch.int32)
        slots = torch.full((len(work), width), -1, dtype=torch.int32)
        for b, (item, own) in enumerate(zip(work, chosen, strict=True)):
            proposed = item.ids[1:] if item.choices == len(item.ids) else []
            accepted = accept(proposed, own.ids) if own.usable else -1
            out[b, 0], out[b, 1] = accepted, own.ids[accepted] if own.usable else 0
            end = item.start + len(item.ids)
            slots[b, : item.choices] = torch.tensor(
                item.sequence.slots(known_end(item), end, self.page_size)
            )
        starts = torch.tensor([known_end(item) for item in work], dtype=torch.int32)
        positions = (starts[:, None] + torch.arange(width, dtype=torch.int32)).flatten()
        return Verified(out, positions, slots.flatten(), self.own._rows.flatten(0, 1), width)


@dataclass
class Verified:
    """As domino_kernels.gpu.hand_over's, but without Triton."""

    out: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor
    width: int


@dataclass
class Begun:
    taken: list[tuple[int, int]]
    proposals: list[list[int]]

    @property
    def ids(self) -> Tensor:
        return torch.tensor(self.proposals)


@dataclass
class EarlyDraft:
    """Runs at once what a graph would; num_begun: sequences' steps. spoilt: every so many steps are
    told to have taken no rows, as where these were no numbers, and propose nonsense."""

    own: Any
    num_begun: int = 0
    spoilt: int = 0
    steps: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def begin(self, parts: Sequence[Part], verified: Verified, count: int) -> Begun:
        self.num_begun += len(parts)
        rows: list[int] = []
        taken: list[tuple[int, int]] = []
        asked: list[Part] = []
        for b, part in enumerate(parts):
            accepted, current = verified.out[b, :2].tolist()
            taken.append((accepted + 1, current))
            first = len(rows)
            rows += verified.slots.view(-1, verified.width)[b, : accepted + 1].tolist()
            asked.append(
                Part(
                    mode=part.mode,
                    pages=part.pages,
                    start=part.start,
                    rows=slice(first, len(rows)),
                    current=current,
                    draft_tokens=count,
                )
            )
        found = self.own.run(asked, verified.rows[rows], draft_pb2.DraftTimings())
        self.steps += 1
        if self.spoilt and self.steps % self.spoilt == 0:
            return Begun([(0, current) for _, current in taken], [[1] * count for _ in parts])
        return Begun(taken, found)


class Waking(PlannedWidth):
    """By turns six plain steps and six with drafts, which wake a step before they are asked."""

    def __init__(self, draft_tokens: int) -> None:
        super().__init__()
        self._draft_tokens, self._steps = draft_tokens, 0

    def draft_tokens(self, sequences: Sequence[Running]) -> int:
        self._steps += 1
        self.wakes = self._steps % 12 == 6
        return 0 if self._steps % 12 < 6 else self._draft_tokens
