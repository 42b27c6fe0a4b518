"""Passes told early by another process: what is answered is what would have been without."""

import pytest

from tests.kernels.interpreted import run_interpreted
from tests.transport.fake_driver import COMPILER

pytest.importorskip("triton")

SCRIPT = """
from tests.draft.early import check_early

check_early()
"""


@pytest.mark.skipif(COMPILER is None, reason="the fake driver is compiled")
def test_steps_told_early_are_those_asked_for() -> None:
    """Messages that never come, passes that never end, rows that are no numbers, choices out of
    range: none may show in an answer, nor a step that began for nothing."""
    run_interpreted(SCRIPT)
