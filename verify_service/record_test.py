"""`python -m verify_service.record_test`: a target and its draft in, self_test.safetensors out."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from serving.draft_format import open_draft
from serving.options import field, parse
from serving.process import run
from serving.target_config import open_target
from serving.weight_files import SELF_TEST_FILE
from verify_service.executor import Executor
from verify_service.projection import FeatureProjection
from verify_service.recorded_test import target_rows
from verify_service.target import Target

NUM_IDS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConfig:
    target: Path = field(help="folder of the target the draft was trained for")
    draft: Path = field(help="folder of the draft; the file is written there")


def record(target: Path, draft: Path) -> Path:
    """Writes the rows of a prompt all over the vocabulary, in float32; returns the file."""
    from safetensors.torch import save_file

    checkpoint, config = open_target(target)
    draft_checkpoint, draft_config = open_draft(draft, config, tokenizer=target)
    model = Target(
        config,
        checkpoint,
        dtype=torch.float32,
        device=torch.device("cpu"),
        taps=draft_config.target_layer_ids,
        max_positions=NUM_IDS,
    )
    projection = FeatureProjection(
        draft_config, draft_checkpoint, dtype=model.dtype, device=model.device
    )
    executor = Executor(model, projection, pages=1, page_size=NUM_IDS)
    ids = [i * config.vocab_size // NUM_IDS for i in range(NUM_IDS)]
    rows = target_rows(executor, ids, NUM_IDS)
    save_file({"ids": torch.tensor(ids), "rows": rows.contiguous()}, draft / SELF_TEST_FILE)
    return draft / SELF_TEST_FILE


def main(argv: Sequence[str] | None = None) -> int:
    config = parse(
        RecordConfig,
        argv,
        prog="python -m verify_service.record_test",
        description="Lets a draft folder say which target it was trained for.",
    )
    print(record(config.target, config.draft))
    return 0


if __name__ == "__main__":
    sys.exit(run(main, "record_test"))
