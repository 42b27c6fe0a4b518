"""The draft's graphs on a GPU against the CPU's executor, in float32: the same proposals."""

import pytest
import torch

from tests.draft.executors import Candidates, check_passes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES: list[tuple[str, Candidates, int]] = [
    ("DFLASH", 0, 0),
    ("DOMINO_SHIFT", 0, 6),
    ("DOMINO_SHIFT", 9, 0),
    ("DOMINO_NOSHIFT", "certified", 0),
]


@pytest.mark.parametrize(("name", "candidates", "window"), CASES)
def test_graphs_equal_the_cpu(name: str, candidates: Candidates, window: int) -> None:
    """Any session, page, bucket or token taken wrongly in a graph only lowers acceptance."""
    executor = check_passes(
        name, candidates, torch.device("cuda"), sessions=5, passes=60, window=window
    )
    assert executor.num_graph > 60
    assert executor.num_eager
