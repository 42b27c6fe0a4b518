"""The draft with gradients is the draft that is served."""

from pathlib import Path

import pytest
import torch

from draft_service.model import DraftModel
from draft_service.rollout import DFlashSampler, DominoSampler
from serving.draft_format import open_draft
from serving.draft_tensors import draft_tensors
from tests.golden.fixture import CPU, FLOAT32, PAGE_SIZE, Fixture, one_span
from tests.recorded_models import DFLASH, DOMINO_NOSHIFT, DOMINO_SHIFT
from tests.training import runs, tiny
from training.cross_entropy import Head
from training.dataset import Document, pack
from training.draft import DraftForward
from training.features import Features
from training.labels import make_labels
from training.metrics import accepted
from training.objective import Objective
from training.rows import Anchors, candidates, choose_anchors
from verify_service.projection import FeatureProjection

LONG = runs.documents(12)[9:]


@pytest.mark.parametrize("folder", [DFLASH, DOMINO_SHIFT, DOMINO_NOSHIFT], ids=lambda p: p.name)
def test_hidden_states_and_proposals_are_those_of_the_service(folder: Path) -> None:
    """Rows packed one behind the other, trained as they are served: a wrong position, visibility or
    GRU step shows as high training accuracy and acceptance near 1 (SpecForge #455)."""
    target = tiny.target((1, 2, 4))
    checkpoint, config = open_draft(folder, target.config)
    weights = {n: checkpoint.tensor(n, s, FLOAT32) for n, s in draft_tensors(config).items()}
    packed = pack(LONG, 160, seed=0)
    features = Features(target, packed, taps=3, keep=True, last=False)
    batch = features.empty(len(packed))
    features.fill(batch, torch.arange(len(packed)))
    uniform = torch.rand(len(packed), 159, generator=torch.Generator().manual_seed(5))
    anchors = choose_anchors(uniform, candidates(batch.supervised, batch.starts), 6)
    forward = DraftForward(config, target.embedding)
    hidden = forward.hidden(weights, batch, anchors)

    tables = Fixture(folder).tables()
    model = DraftModel(config, checkpoint, tables.embedding, max_positions=256, dtype=FLOAT32)
    project = FeatureProjection(config, checkpoint, dtype=FLOAT32, device=CPU)
    dflash = DFlashSampler(tables.lm_head)
    domino = config.domino and DominoSampler(config, checkpoint, tables.lm_head, tables.embedding)
    labels = make_labels(batch, anchors, block_size=8, shift=config.shift_label, gamma=None)
    objective = Objective(draft=forward, head=Head(lm_head=target.lm_head), gamma=7.0)
    kept = 0
    for row, slot in anchors.live.nonzero().tolist():
        column = int(anchors.columns[row, slot])
        start = int(batch.starts[row, column])
        kv = model.new_kv(32, PAGE_SIZE)
        context = project([batch.features[row, start:column]])
        model.append(context, one_span(0, column - start, 32), kv)
        block = torch.full((8,), config.mask_token_id)
        block[0] = batch.ids[row, column]
        served = model.forward(block, one_span(column - start, 8, 32), kv)
        torch.testing.assert_close(hidden[row, slot], served, atol=2e-4, rtol=1e-4)
        first = 0 if config.shift_label else 1
        proposals = (domino or dflash).propose(served[None, first:], block[:1])[0]
        wanted, counts = labels.ids[row, slot, first:], labels.counts[row, slot, first:]
        kept += int(accepted((proposals == wanted)[None, None], counts[None, None]))
    measured = objective.measure(weights, batch, anchors)
    assert int(measured.final_accepted) == kept


def test_packing_changes_nothing() -> None:
    """A document packed behind another one must see neither its tokens nor its positions."""
    target = tiny.target((1, 2, 4))
    config = open_draft(DOMINO_SHIFT, target.config)[1]
    weights = runs.session_weights(config)
    forward = DraftForward(config, target.embedding)
    found = []
    for documents in (LONG[:1], LONG):
        packed = pack(documents, 200, seed=0)
        features = Features(target, packed, taps=3, keep=False, last=True)
        row, first, _ = next(d for d in packed.documents.tolist() if d[2] == len(LONG[0].ids))
        batch = features.empty(1)
        features.fill(batch, torch.tensor([row]))
        at = Anchors(columns=torch.tensor([[first + 9]]), live=torch.ones(1, 1).bool())
        found.append(forward.hidden(weights, batch, at))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


def test_pack_keeps_every_token_once() -> None:
    """A document lost or cut by packing is data paid for and not used."""
    documents = runs.documents(12)
    packed = pack([*documents, Document.of([1, 2], [False, True])], 64, seed=1)
    lengths = sorted(len(d.ids) for d in documents)
    assert sorted(packed.documents[:, 2].tolist()) == lengths
    assert int((packed.starts < 64).sum()) == sum(lengths)
    for row, first, length in packed.documents.tolist():
        part = slice(first, first + length)
        wanted = next(d for d in documents if len(d.ids) == length)
        assert torch.equal(packed.ids[row, part], wanted.ids)
        assert torch.equal(packed.supervised[row, part], wanted.supervised)
        assert set(packed.starts[row, part].tolist()) == {first}
