"""A draft folder's self_test.safetensors: rows that its own target makes, checked at start.

A draft of another target of equal shapes fits in every other way, and accepts nothing. Written by
`python -m verify_service.record_test --target TARGET --draft DRAFT`, best right after training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from serving.errors import CheckpointError
from serving.weight_files import SELF_TEST_FILE
from verify_service.executor import Executor
from verify_service.scheduler import Work
from verify_service.sequence import Request
from verify_service.sequence import Sequence as Running

# Largest distance from the recorded rows, relative to their length: many layers' rounding. Rows of
# another target are more than 1 away.
TOLERANCE: Final = {torch.float32: 0.01, torch.float16: 0.1, torch.bfloat16: 0.25}


def check_recorded_test(draft: Path, executor: Executor, page_size: int, vocab_size: int) -> None:
    """Raises CheckpointError when the draft was made for another target; silent without a file."""
    file = draft / SELF_TEST_FILE
    if not file.is_file():
        return
    ids, expected = _read(file, vocab_size)
    rows = target_rows(executor, ids, page_size)
    limit = TOLERANCE[rows.dtype]
    same_shape = rows.shape == expected.shape
    distance = float((rows.float().cpu() - expected).norm() / expected.norm()) if same_shape else 1
    if not distance <= limit:  # NaN is no match either
        raise CheckpointError(
            f"{file}: the target's rows are {distance:.3g} away from the recorded ones, rounding "
            f"is below {limit:g}: the draft was trained for another target; give that one as "
            "--target, or remove the file to serve this one all the same"
        )


def target_rows(executor: Executor, ids: Sequence[int], page_size: int) -> Tensor:
    """Projected rows [n, hidden] of a prompt, run in the first pages, which must be free."""
    request = Request(
        request_id="self-test",
        prompt_ids=list(ids),
        max_tokens=1,
        stop_ids=frozenset(),
        emit=lambda event: None,
    )
    sequence = Running(request, pages=list(range(-(-len(ids) // page_size))))
    executor.run([Work(sequence=sequence, ids=list(ids), choices=0)])
    return executor.rows([(sequence, 0, len(ids))])


def _read(file: Path, vocab_size: int) -> tuple[list[int], Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(file)
        ids, rows = stored["ids"].tolist(), stored["rows"].float()
        usable = all(0 <= i < vocab_size for i in ids) and len(ids) == len(rows) > 0
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); remove or rewrite it") from None
    if not usable:
        raise CheckpointError(f"{file}: ids are no prompt of this target; remove or rewrite it")
    return ids, rows
