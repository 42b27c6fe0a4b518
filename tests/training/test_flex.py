"""FlexAttention's rule and its values against the dense oracle; gradients are compared on a GPU."""

from pathlib import Path

import pytest
import torch

from serving.draft_config import LayerAttention
from serving.option_type import OptionError
from tests.training import runs
from tests.training.test_blocks import ANCHORS, STARTS
from training.config import TrainConfig
from training.draft import DraftForward
from training.flex import predicate
from training.visibility import dense_mask, visible

WINDOWS = [LayerAttention(window=3), LayerAttention(causal=True, window=5, window_moves=True)]


@pytest.mark.parametrize("rule", [LayerAttention(), LayerAttention(causal=True), *WINDOWS])
def test_the_predicate_is_the_dense_mask(rule: LayerAttention) -> None:
    """Two rules would train one draft on a CPU and another on a GPU (verl-SpeCo #30)."""
    size = 4
    wanted = dense_mask(visible(ANCHORS, STARTS, size, rule))
    seen = predicate(ANCHORS, STARTS, size, rule)
    queries, keys = (torch.arange(n) for n in wanted.shape[1:])
    zero = torch.zeros((), dtype=torch.int64)
    assert torch.equal(seen(zero, zero, queries[:, None], keys), wanted[0])


def test_queries_behind_the_last_block_index_nothing_outside() -> None:
    """Tiles are padded: an index past the last block is a device assert (SpecForge #501)."""
    seen = predicate(ANCHORS, STARTS, 4, LayerAttention())
    zero = torch.zeros((), dtype=torch.int64)
    assert seen(zero, zero, torch.arange(128)[:, None], torch.arange(128)).shape == (128, 128)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_hidden_states_are_the_dense_ones(tmp_path: Path) -> None:
    """Keys, heads or positions in another order than the mask's would go unnoticed by it."""
    trainer = runs.session(tmp_path).trainer
    trainer.train_step()
    dense = trainer.objective.draft
    flex = DraftForward(dense.config, dense.embedding, flex=True)
    batch = trainer.features.empty(2)
    trainer.features.fill(batch, torch.tensor([0, 1]))
    with torch.no_grad():
        found, wanted = (f.hidden(trainer.weights, batch, trainer.anchors()) for f in (flex, dense))
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)


def test_flex_is_for_gpus(tmp_path: Path) -> None:
    """It has no backward pass on a CPU, which would only show at the first step."""
    with pytest.raises(OptionError, match="attention"):
        runs.config(tmp_path, attention="flex")
    config: TrainConfig = runs.config(tmp_path)
    assert not config.flex
