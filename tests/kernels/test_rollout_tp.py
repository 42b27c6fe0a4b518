"""The rollout with W2 in parts on two gloo ranks, under Triton's interpreter, and its refusals.

Gathered and compact: tests/golden, f4.
"""

from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.golden.run_tp import run_ranks
from tests.kernels.recorded_head import recorded_head

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found() -> list[dict[str, Tensor]]:
    """Each rank's proposals of every case."""
    return run_ranks("tests.kernels.tp_ranks", "main")


def test_ranks_agree(found: list[dict[str, Tensor]]) -> None:
    """Ranks that follow different tokens hang in, or garble, the next exchange."""
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("mode", ["0", "certified"])
def test_parts_of_w2_equal_one_rank(found: list[dict[str, Tensor]], mode: str) -> None:
    """An id counted from the rank's own first token is another token."""
    wanted = recorded_head()[-1]["sglang.pool0"]
    for shares in ("uneven", "padded"):
        assert torch.equal(found[0][f"{shares}.{mode}"], wanted), shares
    assert not found[0][f"tied.{mode}"].any()


def test_shares_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without tokens, or tokens without a rank, would only show as a hang or wrong ids."""
    from domino_kernels.rollout_shard import VocabShard

    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    group = cast(dist.ProcessGroup, None)  # whose size and rank are as above
    assert VocabShard.of(257, group).padded == 129
    for padded in (128, 257):
        with pytest.raises(ValueError, match=f"padded is {padded}: .*129 would"):
            VocabShard.of(257, group, padded)
