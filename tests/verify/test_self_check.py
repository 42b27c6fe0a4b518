"""The warning about a draft that does not fit: after 200 bad steps, once, never without cause."""

from pathlib import Path

import pytest

from domino_cli.in_process import collect
from domino_serve.v1 import speculation_pb2 as spec
from tests.engines import engines
from tests.recorded_models import TARGET
from tests.tiny_models import write_draft
from verify_service.self_check import STEPS, FirstProposals


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "verify_service.self_check"]


def count(check: FirstProposals, *shares: float) -> None:
    """One run of STEPS steps for each share of right first proposals."""
    for share in shares:
        for step in range(STEPS):
            check.count(step < share * STEPS)


def test_it_warns_once_until_the_draft_recovers(caplog: pytest.LogCaptureFixture) -> None:
    """A warning at every step hides all others; one that never comes back hides the next change."""
    check = FirstProposals()
    count(check, 0.5, 0.3)
    assert warnings(caplog) == []
    count(check, 0.29, 0.0, 0.1)
    assert len(warnings(caplog)) == 1 and "right in 29% of the last 200" in warnings(caplog)[0]
    count(check, 0.6, 0.1)
    assert len(warnings(caplog)) == 2


def test_a_foreign_draft_is_noticed_while_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A draft of another target with equal shapes loads, answers, and costs speed for ever."""
    write_draft(TARGET, tmp_path / "foreign", block_size=4, domino=True, shift=True)
    with engines(TARGET, tmp_path / "foreign") as running:
        events = [
            running.submit([i, 5, 9], 120, mode=spec.MODE_DOMINO, draft_tokens=3) for i in range(3)
        ]
        for event in events:
            collect(event)
    assert len(warnings(caplog)) == 1
