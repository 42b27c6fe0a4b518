"""What the heads may read and change, slot by slot; starts that do not fit; tied heads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from domino_kernels.rope import inverse_frequencies
from serving.errors import CheckpointError
from tests.golden.fixture import Fixture
from tests.golden.run_training import Recorded
from tests.recorded_models import TARGET
from tests.training import runs, tiny
from training.domino import UP, bottleneck, gru_states, previous_ids
from training.target import BatchTarget

GOLDEN = Path(__file__).parents[1] / "golden"
SHIFT, SAME = "f5_training_domino_shift", "f5_training_domino_noshift"


def recorded(kind: str) -> Recorded:
    return Recorded(Fixture(GOLDEN / kind))


def correction(it: Recorded, ids: Tensor) -> Tensor:
    """Bottlenecks [R, N, B, E] for given tokens, the backbone's hidden states as they are."""
    hidden = it.draft.hidden(it.weights, it.rows, it.anchors)
    previous = previous_ids(replace(it.rows, ids=ids), it.anchors, it.draft.config.block_size)
    return bottleneck(it.draft.config, it.weights, hidden, previous, it.draft.embedding)


@pytest.mark.parametrize(("kind", "first"), [(SHIFT, 1), (SAME, 2)])
def test_the_first_prediction_is_the_bases_alone(kind: str, first: int) -> None:
    """The server takes it from the base logits; a correction there is never served."""
    small = correction(recorded(kind), recorded(kind).rows.ids)
    assert not small[:, :, :first].any()
    assert small[:, :, first:].any(-1).all()


@pytest.mark.parametrize(("kind", "ahead"), [(SHIFT, 1), (SAME, 0)])
def test_a_correction_reads_only_the_tokens_before(kind: str, ahead: int) -> None:
    """Slot k of the shifted rule has seen x[a..a+k], of the other x[a..a+k-1]: one more is the
    label itself, which trains to accuracy 1 and accepts nothing."""
    it = recorded(kind)
    before, size = correction(it, it.rows.ids), it.draft.config.block_size
    block = 1
    anchor = int(it.anchors.columns[0, block])
    for offset in range(size):
        ids = it.rows.ids.clone()
        if anchor + offset >= ids.shape[1]:
            break
        ids[0, anchor + offset] = (ids[0, anchor + offset] + 1) % 250
        changed = (correction(it, ids)[0, block] != before[0, block]).any(-1)
        reads = [k for k in range(size) if changed[k]]
        assert all(k >= offset + 1 - ahead for k in reads), (offset, reads)


def test_states_are_those_of_torchs_gru() -> None:
    """Gate order or a bias that the checkpoint lacks (TorchSpec's layout) shows nowhere else."""
    it = recorded(SHIFT)
    into, over = (it.weights[f"prefix_gru.weight_{n}_l0"].detach() for n in ("ih", "hh"))
    gru = torch.nn.GRU(into.shape[1], over.shape[1], bias=False, batch_first=True)
    gru.load_state_dict({"weight_ih_l0": into, "weight_hh_l0": over})
    tokens = torch.randn(3, 5, into.shape[1], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gru_states(it.weights, tokens), gru(tokens)[0])


def test_at_share_zero_the_backbone_learns_through_the_final_branch() -> None:
    """The base branch's own loss must be gone, and the head's gradient there."""
    it = recorded(SHIFT)
    losses = it.objective(7.0)
    at_zero = losses.sums(it.weights, it.rows, it.anchors, torch.tensor(0.0))
    assert float(at_zero.loss.detach()) == pytest.approx(float(at_zero.final), rel=1e-6)
    learnt = [it.weights[UP], it.weights["fc.weight"]]
    assert all(slope.any() for slope in torch.autograd.grad(at_zero.loss, learnt))


@pytest.mark.parametrize("changes", [{"taps": 2}, {"block_size": 8, "layers": 2}])
def test_a_start_of_another_shape_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    """A draft of other taps has an fc of another width (seed 003: found only in the forward)."""
    first = runs.session(tmp_path / "first")
    folder = first.export(tmp_path / "export")
    with pytest.raises(CheckpointError, match=r"expected|missing"):
        runs.session(tmp_path / "second", init=folder, **changes)
    again = runs.session(tmp_path / "third", init=folder)
    for name, weight in first.trainer.masters.items():
        assert torch.equal(again.trainer.masters[name], weight.bfloat16().float()), name
    assert again.trainer.step == 0, "a start from weights is no resumed run"
    with pytest.raises(CheckpointError, match="nowhere"):
        runs.session(tmp_path / "fourth", init=tmp_path / "nowhere")


def test_a_tied_target_has_its_embedding_as_head(tmp_path: Path) -> None:
    """SpecForge trained through a random head where tie_word_embeddings was ignored (#473)."""
    config = json.loads((TARGET / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = load_file(TARGET / "model.safetensors")
    own = tiny.target()
    assert torch.equal(own.lm_head, stored.pop("lm_head.weight").float())
    save_file(stored, tmp_path / "model.safetensors")
    tied = BatchTarget.load(tmp_path, taps=(1, 2), dtype=torch.float32, device=tiny.CPU)
    assert torch.equal(tied.lm_head, stored["model.embed_tokens.weight"].float())


def test_frequencies_stay_float32() -> None:
    """Rounded to bfloat16, positions drift at long lengths (AutoModel #2859)."""
    it = recorded(SHIFT)
    exact = inverse_frequencies(it.draft.config.rope, it.draft.config.head_dim)
    assert it.draft._frequencies.dtype == torch.float32
    assert torch.equal(it.draft._frequencies, exact)
    angles, _ = it.draft._angles(torch.tensor([30_000]), torch.bfloat16)
    expected = (30_000 * exact.double()).cos()
    torch.testing.assert_close(angles.flatten().double(), expected, atol=5e-3, rtol=0)
