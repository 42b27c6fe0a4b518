"""Which tensors a fixture requires, and whether ours equal the recorded ones."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RULES_FILE = "required.json"


@dataclass(frozen=True)
class Rules:
    """One entry of required.json: which tensors to compare, and how."""

    needs: str
    tensors: tuple[str, ...]
    abs: float
    rel: float
    by_rounds: bool
    only_where_keep: tuple[str, ...] = ()
    first_column_only: tuple[str, ...] = ()
    json: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def requires(self, name: str) -> bool:
        """Whether a recorded tensor has to be compared, if only its first column."""
        patterns = self.tensors + self.first_column_only
        return any(re.fullmatch(pattern, name) for pattern in patterns)


def rules_for(folder: Path) -> Rules | None:
    """The rules whose key starts the folder's name (or its parent's); None when there are none."""
    file = next((p / RULES_FILE for p in folder.parents if (p / RULES_FILE).exists()), None)
    if file is None:
        return None
    table: dict[str, Any] = json.loads(file.read_text())
    for kind, rule in table.items():
        if kind.startswith("_"):
            continue
        nested = folder.parent.name == kind and folder.name in rule
        if folder.name.startswith(kind) or nested:
            tensors = (r"c\d+\.output",) if nested else tuple(rule.get("tensors", ()))
            return Rules(
                needs=rule["needs"],
                tensors=tensors,
                abs=rule.get("abs", 0.0),
                rel=rule.get("rel", 0.0),
                by_rounds="rounds" in rule,
                only_where_keep=tuple(rule.get("only_where_keep", ())),
                first_column_only=tuple(rule.get("first_column_only", ())),
                json=rule.get("json", {}),
            )
    return None


def compare(
    name: str,
    ours: Tensor | None,
    expected: Tensor,
    rules: Rules,
    keep: Tensor | None = None,
) -> dict[str, Any]:
    """One JSON-able verdict: `ok`, and what differs where it is not.

    keep [R, N]: which slots hold a block; tensors [R, N, ...] or [R, N * B, ...] that are only
    required there are compared there.
    """
    verdict: dict[str, Any] = {"tensor": name, "ok": False}
    if ours is None:
        return verdict | {"why": "not produced"}
    if rules.by_rounds and not name.endswith("output"):
        expected = expected[: len(ours)]
        ours = ours.to(expected.dtype).view(len(ours), *expected.shape[1:])
    if ours.shape != expected.shape:
        return verdict | {"why": f"shape {list(ours.shape)}, expected {list(expected.shape)}"}
    if any(re.fullmatch(pattern, name) for pattern in rules.first_column_only):
        ours, expected = ours[:, :1], expected[:, :1]
    if keep is not None and name in rules.only_where_keep:
        live = keep.repeat_interleave(expected.shape[1] // keep.shape[1], 1)
        ours, expected = ours[live], expected[live]
    if not expected.is_floating_point():
        wrong = int((ours != expected).sum())
        return verdict | {"ok": wrong == 0, "unequal": wrong}
    difference = (ours.double() - expected.double()).abs()
    allowed = rules.abs + rules.rel * expected.double().abs()
    worst = float(difference.max()) if difference.numel() else 0.0
    return verdict | {"ok": bool(torch.all(difference <= allowed)), "max_abs_diff": worst}


def compare_values(
    file: str, ours: Sequence[float], expected: Sequence[float], rules: Rules
) -> dict[str, Any]:
    """The verdict on one list of numbers of a JSON recording."""
    rule = rules.json[file.split(":")[0]]
    pairs = list(zip(ours, expected, strict=True))
    wrong = [
        i
        for i, (a, b) in enumerate(pairs)
        if abs(a - b) > rule.get("abs", 0.0) + rule.get("rel", 0.0) * abs(b)
    ]
    worst = max((abs(a - b) for a, b in pairs), default=0.0)
    return {"tensor": file, "ok": not wrong, "max_abs_diff": worst, "wrong": wrong}
