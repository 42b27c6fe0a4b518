"""One random batch is learnt by heart, in both label conventions."""

import pytest

from training.smoke import smoke


@pytest.mark.parametrize("shift", [True, False])
def test_smoke_learns_its_batch(shift: bool) -> None:
    """Failing to overfit one batch is an alignment or mask bug, whatever else passes."""
    lines: list[str] = []
    assert smoke(lines.append, shift=shift), lines
    assert lines[6].startswith("[smoke] step  60  final_loss=") and "lambda_base=0.000" in lines[6]
    assert lines[-2].startswith("[smoke] DONE  final_loss ")
