"""Anchors, masks, labels and weights against hand-written and loop-written answers."""

import math

import pytest
import torch

from serving.draft_config import LayerAttention
from training.curriculum import base_share
from training.draft_json import tapped_layers
from training.labels import decay, make_labels
from training.rows import Anchors, Rows, candidates, choose_anchors, one_document
from training.slots import ScoredSlots
from training.visibility import dense_mask, visible

STARTS = torch.tensor([[0] * 7 + [7] * 4 + [12]])  # two documents and a pad column
ANCHORS = Anchors(
    columns=torch.tensor([[0, 4, 5, 9, 0]]), live=torch.tensor([[True, True, True, True, False]])
)


@pytest.mark.parametrize(
    "rule", [LayerAttention(), LayerAttention(causal=True, window=3), LayerAttention(causal=True)]
)
def test_mask_equals_the_one_of_four_loops(rule: LayerAttention) -> None:
    """Overlapping anchors, anchor 0, packed documents and dead slots: each has let blocks see what
    serving hides (SpecForge #415, #470), and the loss looked better for it."""
    size, length = 4, STARTS.shape[1]
    found = dense_mask(visible(ANCHORS, STARTS, size, rule))[0]
    columns, live = ANCHORS.columns[0].tolist(), ANCHORS.live[0].tolist()
    for j, anchor in enumerate(columns):
        for k in range(size):
            for t in range(length):
                near = rule.window is None or t >= anchor + k - (rule.window - 1)
                same = STARTS[0, anchor] <= t < anchor
                assert found[j * size + k, t] == (live[j] and bool(same) and near), (j, k, t)
            for other in range(len(columns)):
                for slot in range(size):
                    own = other == j and (not rule.causal or slot <= k)
                    assert found[j * size + k, length + other * size + slot] == own


def rows(ids: list[int], supervised: list[int], starts: list[int] | None = None) -> Rows:
    made = one_document(torch.tensor([ids]), torch.tensor([supervised]).bool(), torch.empty(1, 0))
    if starts is None:
        return made
    return Rows(
        ids=made.ids,
        supervised=made.supervised,
        starts=torch.tensor([starts]),
        features=made.features,
    )


def test_labels_of_both_conventions_by_hand() -> None:
    """Labels one off still train, and accept nothing when served (SpecForge #473)."""
    line = rows([10, 11, 12, 13, 14, 15, 16], [0, 1, 1, 1, 0, 1, 1])
    at = Anchors(columns=torch.tensor([[1, 5]]), live=torch.ones(1, 2).bool())
    same = make_labels(line, at, block_size=4, shift=False, gamma=None)
    assert same.ids.tolist() == [[[11, 12, 13, 14], [15, 16, 16, 16]]]
    assert same.counts.tolist() == [[[False, True, True, False], [False, True, False, False]]]
    shifted = make_labels(line, at, block_size=4, shift=True, gamma=None)
    assert shifted.ids.tolist() == [[[12, 13, 14, 15], [16, 16, 16, 16]]]
    # 15 is supervised, but behind a gap that no server drafts across.
    assert shifted.counts.tolist() == [[[True, True, False, False], [True, False, False, False]]]


def test_labels_end_with_the_document() -> None:
    """A packed row must not teach the next document's beginning."""
    line = rows([10, 11, 12, 20, 21], [1, 1, 1, 1, 1], [0, 0, 0, 3, 3])
    at = Anchors(columns=torch.tensor([[1]]), live=torch.ones(1, 1).bool())
    found = make_labels(line, at, block_size=4, shift=True, gamma=None)
    assert found.counts.tolist() == [[[True, False, False, False]]]
    assert candidates(line.supervised, line.starts).tolist() == [[True, True, False, True]]


@pytest.mark.parametrize(
    ("size", "gamma", "shift", "total", "last"),
    [(16, 7.0, False, 6.6306, 0.1353), (16, 7.0, True, 6.7479, 0.1173), (8, 4.0, True, 3.9090, 0)],
)
def test_decay_sums(size: int, gamma: float, shift: bool, total: float, last: float) -> None:
    """The published sums: a decay that starts one slot late weighs every recipe differently."""
    weights = decay(size, shift=shift, gamma=gamma)
    assert math.isclose(float(weights[0 if shift else 1 :].sum()), total, abs_tol=1e-4)
    assert not last or math.isclose(float(weights[-1]), last, abs_tol=1e-4)


def test_anchors_fill_slots_without_replacement() -> None:
    """Dead slots come last and stay dead; every candidate is drawn once."""
    eligible = torch.tensor([[True, False, True, True], [False, False, False, False]])
    uniform = torch.tensor([[0.9, 0.0, 0.1, 0.5], [0.1, 0.2, 0.3, 0.4]])
    found = choose_anchors(uniform, eligible, 6)
    assert found.columns.tolist() == [[0, 2, 3, 0, 0, 0], [0] * 6]
    assert found.live.tolist() == [[True] * 3 + [False] * 3, [False] * 6]
    assert choose_anchors(uniform, eligible, 2).columns.tolist() == [[2, 3], [0, 0]]


def test_curriculum() -> None:
    """Zero means zero, where an `or` made it the default; a resumed step has its own value."""
    table = {0: 1.0, 10: 5 / 6, 30: 0.5, 60: 0.0, 75: 0.0}
    for step, share in table.items():
        assert math.isclose(base_share(step, 120, steps=60), share)
        assert math.isclose(base_share(step, 60), share)
        assert base_share(step, 120, steps=0) == 0.0
        assert base_share(step, 60, start=0.0) == 0.0


def test_tapped_layers() -> None:
    """The authors' table; a formula one off taps layers that no server expects."""
    table = {28: [1, 7, 13, 19, 25], 32: [1, 8, 15, 22, 29], 36: [1, 9, 17, 25, 33]}
    table |= {40: [1, 10, 19, 28, 37], 48: [1, 12, 23, 34, 45], 64: [1, 16, 31, 46, 61]}
    assert {n: tapped_layers(5, n) for n in table} == table
    assert tapped_layers(1, 28) == [14]


def test_scored_slots_count_what_they_stand_for() -> None:
    """Late slots scored in one of five blocks must weigh as if they were scored in each."""
    slots = ScoredSlots(block_size=16, always=6, every=5)
    index = slots.index(torch.arange(40)[None])
    weights = slots.weights(torch.device("cpu"))
    total = torch.zeros(16).index_add_(0, index.flatten(), weights.expand_as(index).flatten())
    assert total.tolist() == [40.0] * 16
