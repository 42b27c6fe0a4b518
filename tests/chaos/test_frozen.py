"""A verify group that stands still, and is not dead: its streams go on elsewhere, it comes back."""

from pathlib import Path

import pytest

from tests.chaos.cluster import cluster
from tests.chaos.kills import freeze_verify
from tests.chaos.tokenizer import save_tokenizer
from tests.chaos.traffic import known_cases


@pytest.mark.timeout(600)
def test_a_group_frozen_past_its_pings(tmp_path: Path) -> None:
    """Prevents streams that wait for a swapped-out or unreachable machine for ever, and what its
    requests held from being kept once it goes on. Two pings take 4 s here; without a limit of our
    own gRPC waits a minute for the second one's answer."""
    cases = known_cases(8, 7, max_tokens=60)
    options = {"max_sequences": 8, "max_waiting": 16}
    with cluster(save_tokenizer(tmp_path), ping_s=2.0, **options) as services:
        found = freeze_verify(services, cases, 7)
    assert (found["identical"], found["errors"]) == (found["streams"], ())
    assert found["stood_still"] > 0, "it froze when nobody needed it"
    assert found["longest_gap_s"] < 30
    assert found["leaks"] == {}
