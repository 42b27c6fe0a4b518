"""What a block's queries see, against recorded masks and position by position."""

import pytest
import torch
from safetensors.torch import load_file

from domino_kernels.attention import Span
from draft_service.model import visibility
from serving.draft_config import LayerAttention
from tests.recorded_models import TARGET

RECORDED = TARGET.parent / "f7_speculators_dflash"
BLOCK, WINDOW = 8, 6


def block_at(anchor: int) -> Span:
    return Span(start=anchor, count=BLOCK, pages=[0])


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        ("mask_full", LayerAttention()),
        ("mask_sliding6_causal", LayerAttention(causal=True, window=WINDOW, window_moves=False)),
        ("mask_sliding6_noncausal", LayerAttention(window=WINDOW, window_moves=False)),
    ],
)
def test_speculators_rules_equal_the_recorded_masks(mask: str, rule: LayerAttention) -> None:
    """A window off by one, or moving with the row, changes every hidden state a little."""
    recorded = load_file(RECORDED / "expected.safetensors")[mask]
    inputs = load_file(RECORDED / "inputs.safetensors")
    length = len(inputs["input_ids"])
    for number, anchor in enumerate(inputs["anchors"].tolist()):
        rows = recorded[number * BLOCK : (number + 1) * BLOCK]
        block = rows[:, length + number * BLOCK :][:, :BLOCK]
        expected = torch.cat((rows[:, :anchor], block), dim=1)
        seen = visibility(rule).mask(block_at(anchor), anchor + BLOCK)
        assert torch.equal(seen, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3, 8, 50])
def test_authors_rules_position_by_position(causal: bool, window: int | None) -> None:
    """Layers may be overridden to causal or not; the window counts the query's own position."""
    rule, start, end = LayerAttention(causal=causal, window=window), 11, 19
    expected = [
        [(k <= q or not causal) and (window is None or q - k < window) for k in range(end)]
        for q in range(start, end)
    ]
    span = Span(start=start, count=end - start, pages=[0])
    assert visibility(rule).mask(span, end).tolist() == expected
