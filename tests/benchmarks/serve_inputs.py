"""What tests of `bench serve` run on: a measured cell, and a pair of tiny models."""

import shutil
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.serve_cell import Cell
from loadtest.record import Record
from loadtest.summary import summarise
from tests.recorded_models import DOMINO_SHIFT, TARGET, VOCAB

RECORD = Record(
    workload="w",
    index=0,
    turn=0,
    sent_s=0.0,
    scheduled_s=0.0,
    token_times_s=(0.1, 0.2),
    token_counts=(1, 3),
    end_s=0.2,
)
SUMMARY = summarise([RECORD], {"request_rate": None, "concurrency": 1, "mode": None})


def cell(arm: str, load: str, workload: str, speed: float, **more: Any) -> Cell:
    values: dict[str, Any] = {
        "arm": arm,
        "load": load,
        "workload": workload,
        "repeat": 0,
        "summary": {**SUMMARY, "output_throughput": speed},
        "answers": {f"{workload}/0/0": "a"},
    }
    return Cell(**{**values, **more})


def tiny_pair(folder: Path) -> tuple[Path, Path]:
    """The recorded target with a tokenizer of its size, and its draft."""
    target, draft = folder / "target", folder / "draft"
    for source, copy in ((TARGET, target), (DOMINO_SHIFT, draft)):
        copy.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(source / name, copy / name)
    vocabulary = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(target / "tokenizer.json"))
    return target, draft
