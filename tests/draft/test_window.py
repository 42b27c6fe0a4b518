"""A draft window: proposals depend on the last committed positions only, and on those alone."""

from dataclasses import replace

import pytest

from draft_service.config import DraftServiceConfig
from draft_service.load import load
from draft_service.window import windowed
from serving.draft_config import LayerAttention
from serving.draft_format import open_draft
from serving.target_config import open_target
from tests.draft.exchange import Peer, ids, random_rows, step
from tests.recorded_models import BLOCK, DOMINO_SHIFT, TARGET

WINDOW, CONTEXT = 8, 40


def proposals(window: int, changed: int | None) -> list[int]:
    """After CONTEXT random rows, one of which is another where `changed` says so."""
    config = DraftServiceConfig(
        target=TARGET, draft=DOMINO_SHIFT, threads=1, page_size=16, kv_tokens=64,
        draft_window=window,
    )  # fmt: skip
    rows = random_rows(CONTEXT, seed=3)
    if changed is not None:
        rows[changed] = 30 * random_rows(1, seed=4)[0]
    peer = Peer(load(config).engine)
    asked = step(1, 1, 0, CONTEXT, current=42, draft_tokens=BLOCK)
    return ids(peer.exchange(asked, rows=rows, opens=[peer.open(1, positions=50)])[0])


def test_only_the_window_counts() -> None:
    """A window that starts elsewhere than it says costs acceptance without any error."""
    behind, first = CONTEXT - WINDOW - 1, CONTEXT - WINDOW
    assert proposals(WINDOW, None) == proposals(WINDOW, behind)
    assert proposals(WINDOW, None) != proposals(WINDOW, first)
    assert proposals(0, None) != proposals(0, behind), "without a window it would count"


def test_a_shorter_window_of_a_layer_stays() -> None:
    """The layer was trained with it."""
    draft = open_draft(DOMINO_SHIFT, open_target(TARGET)[1])[1]
    moving, fixed = LayerAttention(causal=True, window=4), LayerAttention(window=100)
    draft = replace(draft, attention=(moving, fixed, LayerAttention(causal=True)))
    limit = {"window": 10, "window_moves": False}
    cut = (moving, replace(fixed, **limit), LayerAttention(causal=True, **limit))  # type: ignore[arg-type]
    assert windowed(draft, 10).attention == cut
    assert windowed(draft, 0) == draft


@pytest.mark.parametrize("window", [CONTEXT, 1000])
def test_a_window_beyond_the_context_changes_nothing(window: int) -> None:
    """Short contexts must not pay for a window meant for long ones."""
    assert proposals(window, None) == proposals(0, None)
