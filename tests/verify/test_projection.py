"""The projected rows that verify sends, against torch's own linear and RMS norm in float64."""

import pytest
import torch
from torch import nn

from domino_cli.in_process import collect
from domino_serve.v1 import speculation_pb2 as spec
from serving.draft_format import open_draft
from serving.target_config import open_target
from tests.engines import engines
from tests.recorded_models import DOMINO_SHIFT, HIDDEN, TARGET
from verify_service.projection import FeatureProjection


def test_rows_are_the_normed_projection_of_the_taps_in_order() -> None:
    """Taps in another order or another epsilon cost acceptance without any error."""
    checkpoint, config = open_draft(DOMINO_SHIFT, open_target(TARGET)[1])
    projection = FeatureProjection(
        config, checkpoint, dtype=torch.float32, device=torch.device("cpu")
    )
    taps = torch.randn(3, 7, HIDDEN, generator=torch.Generator().manual_seed(0))
    fc = checkpoint.tensor("fc.weight", (HIDDEN, 3 * HIDDEN), torch.float64)
    norm = nn.RMSNorm(HIDDEN, eps=checkpoint.config["rms_norm_eps"], dtype=torch.float64)
    norm.weight.data = checkpoint.tensor("hidden_norm.weight", (HIDDEN,), torch.float64)
    expected = norm(torch.cat(list(taps), dim=-1).double() @ fc.T)
    torch.testing.assert_close(projection(list(taps)).double(), expected, atol=1e-5, rtol=1e-5)


def test_plain_requests_pay_no_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding beside a draft was 2 to 3% slower than without one on a CPU, and the ratio to
    it that much too good."""
    projected = []
    call = FeatureProjection.__call__

    def counted(self: FeatureProjection, taps: list[torch.Tensor]) -> torch.Tensor:
        projected.append(len(taps[0]))
        return call(self, taps)

    with engines(TARGET, DOMINO_SHIFT) as running:
        monkeypatch.setattr(FeatureProjection, "__call__", counted)
        plain, _ = collect(running.submit([3, 9, 4], 8))
        assert not projected
        events = running.submit([3, 9, 4], 8, mode=spec.MODE_DOMINO, draft_tokens=3)
        drafted, _ = collect(events)
    assert projected[0] == 3 and drafted == plain
