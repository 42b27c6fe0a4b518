"""Rows on a CPU are projected when a draft is sent them, however they were run."""

from unittest.mock import patch

import torch
from torch import Tensor

from tests.recorded_models import DOMINO_SHIFT, TARGET
from verify_service.config import VerifyConfig
from verify_service.load_executor import load_part
from verify_service.projection import FeatureProjection
from verify_service.scheduler import Work
from verify_service.sequence import Request, Sequence

IDS = list(range(3, 14))


def test_plain_steps_project_nothing_and_rows_are_those_of_one_pass() -> None:
    """A pass over the projection's weights for each plain step made a service with a draft slower
    than one without; rows kept for later must still be their own positions'."""
    part = load_part(
        VerifyConfig(target=TARGET, draft=DOMINO_SHIFT, threads=1, kv_tokens=64, page_size=4)
    )
    calls: list[int] = []
    project = FeatureProjection.__call__

    def counted(self: FeatureProjection, taps: list[Tensor]) -> Tensor:
        calls.append(len(taps[0]))
        return project(self, taps)

    request = Request(
        request_id="x",
        prompt_ids=IDS,
        max_tokens=9,
        stop_ids=frozenset(),
        emit=lambda event: None,
    )
    whole, stepwise = (Sequence(request, pages=pages) for pages in ([0, 1, 2], [9, 3, 7]))
    with patch.object(FeatureProjection, "__call__", counted):
        part.executor.run([Work(sequence=whole, ids=IDS, choices=0)])
        for token in IDS:
            part.executor.run([Work(sequence=stepwise, ids=[token], choices=1)])
            stepwise.kv_len += 1
        assert not calls
        rows = part.executor.rows([(stepwise, 2, 9), (whole, 2, 9)])
    assert calls == [14]
    torch.testing.assert_close(rows[:7], rows[7:], atol=1e-5, rtol=1e-5)
