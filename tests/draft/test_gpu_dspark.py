"""A DSpark draft's GPU executor under Triton's interpreter against the CPU's."""

from pathlib import Path

import pytest

from tests.kernels.interpreted import run_interpreted
from tests.training import runs

pytest.importorskip("triton")

PASSES = """
from pathlib import Path
from tests import recorded_models
from tests.draft.executors import check_passes

recorded_models.DSPARK = Path({folder!r})
check_passes("DSPARK", 0, torch.device("cpu"), sessions=3, passes=2)
"""


def test_executors_draft_alike(tmp_path: Path) -> None:
    """Hidden rows of another slot, or of the padding, only lower acceptance."""
    session = runs.session(tmp_path, head="dspark", markov_rank=8, markov_head="rnn", steps=4)
    run_interpreted(PASSES.format(folder=str(session.run(lambda _: None))))
