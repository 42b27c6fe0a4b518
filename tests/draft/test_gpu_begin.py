"""A draft step that begins behind the verify step proposes what the host would have asked for."""

import pytest
import torch

from tests.kernels.interpreted import run_interpreted

pytest.importorskip("triton")

SCRIPT = """
from tests.draft.begun import check_begun

check_begun("DOMINO_SHIFT", torch.device("cpu"), passes=2)
"""


def test_begun_steps_are_those_asked_for() -> None:
    """Rows, tokens or places handed over wrongly only lower acceptance."""
    run_interpreted(SCRIPT)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "window"), [("DOMINO_SHIFT", 0), ("DOMINO_NOSHIFT", 6)])
def test_graphs_begin_alike(name: str, window: int) -> None:
    """The same through graphs, whose inputs were another step's before."""
    from tests.draft.begun import check_begun

    check_begun(name, torch.device("cuda"), passes=5, window=window)
