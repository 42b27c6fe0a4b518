"""The Domino rollout on a GPU, as one launch and as several: what its benchmark proves, small."""

import pytest
import torch

from benchmarks import rollout_checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_modes_against_float64() -> None:
    """Every mode, dtype and batch; certified must give mode 0's ids."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    lines = list(rollout_checks.modes("cuda", dtypes))
    assert sum("one launch" in line for line in lines) == 4
    assert sum("several" in line for line in lines) == 21


@pytest.mark.parametrize("resident", [True, False])
def test_hard_cases(resident: bool) -> None:
    """Equal scores, flat spectra, huge and tiny norms."""
    list(rollout_checks.adversarial("cuda", (1, 8), resident=resident))


def test_replays_and_mutants() -> None:
    """A captured launch reads its inputs anew, and a broken rollout does not pass."""
    rollout_checks.graph_equals_eager("cuda")
    assert len(list(rollout_checks.mutations("cuda"))) == 5
