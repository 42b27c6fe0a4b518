"""Samplers against a plain loop over torch.nn modules in float64, and the rule for ties."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from domino_kernels.attention import Batch, Span
from domino_kernels.linear import Linear
from domino_kernels.native.library import library
from draft_service.config import DraftServiceConfig
from draft_service.load import load
from draft_service.model import DraftModel
from draft_service.rollout import DFlashSampler, make_samplers
from draft_service.tables import Tables, read_tables
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.target_config import open_target
from tests.draft.exchange import Peer, ids, random_rows, step
from tests.recorded_models import BLOCK, DOMINO_NOSHIFT, DOMINO_SHIFT, HIDDEN, TARGET, VOCAB

BATCH = 5
FOLDERS = {"shift": DOMINO_SHIFT, "noshift": DOMINO_NOSHIFT}


@dataclass(frozen=True)
class Parts:
    """A draft and what it borrows from its target."""

    config: DraftConfig
    checkpoint: Checkpoint
    tables: Tables


@cache
def parts(folder: Path) -> Parts:
    target, sizes = open_target(TARGET)
    draft, config = open_draft(folder, sizes)
    cpu = torch.device("cpu")
    tables = read_tables(config, draft, sizes, target, dtype=torch.float32, device=cpu)
    return Parts(config, draft, tables)


def propose(
    folder: Path, hidden: Tensor, current: Tensor, candidates: int, threshold: float = 0.0
) -> list[list[int]]:
    p = parts(folder)
    samplers = make_samplers(p.config, p.checkpoint, p.tables, candidates, threshold=threshold)
    assert samplers[1] is not None
    with torch.inference_mode():
        proposed: list[list[int]] = samplers[1].propose(hidden, current).tolist()
    return proposed


def double(folder: Path, name: str) -> Tensor:
    checkpoint = Checkpoint(folder)
    return checkpoint.tensor(name, checkpoint.shapes[name], torch.float64)


def plain_rollout(folder: Path, hidden: Tensor, current: int, candidates: int) -> list[int]:
    """One sequence; hidden [n, hidden], row j for the j-th proposal."""
    return [token for token, _ in plain_steps(folder, hidden, current, candidates)]


def plain_steps(
    folder: Path, hidden: Tensor, current: int, candidates: int
) -> list[tuple[int, float]]:
    """Each proposal, and the softmax of it and of all before it, multiplied."""
    head = double(TARGET, "lm_head.weight")
    embedding = double(TARGET, "model.embed_tokens.weight")
    gru = nn.GRU(HIDDEN, double(folder, "prefix_gru.weight_hh_l0").shape[1], bias=False).double()
    mlp = [double(folder, f"embed_proj.{i}.weight") for i in (0, 2)]
    gru.load_state_dict(
        {n: double(folder, f"prefix_gru.{n}") for n in ("weight_ih_l0", "weight_hh_l0")}
    )
    base = hidden.double() @ head.T
    pool = torch.arange(VOCAB)
    if candidates and len(base) > 1:
        pool = base[1:].amax(0).sort(descending=True).indices[:candidates].sort().values
    drafted = [int(base[0].argmax())]
    chances = [float(base[0].softmax(-1).amax())]
    for j in range(1, len(hidden)):
        _, state = gru(embedding[[current, *drafted]])
        bottleneck = nn.functional.silu(mlp[0] @ torch.cat((hidden[j].double(), state[0])))
        scores = base[j] + mlp[1] @ bottleneck
        drafted.append(int(pool[scores[pool].argmax()]))
        chances.append(chances[-1] * float(scores[pool].softmax(-1).amax().detach()))
    return list(zip(drafted, chances, strict=True))


@pytest.mark.parametrize("candidates", [0, 1, 9, VOCAB - 1, VOCAB, 10**6])
@pytest.mark.parametrize("length", [1, 2, BLOCK])
def test_domino_equals_a_plain_loop(candidates: int, length: int) -> None:
    """A wrong gate order, prefix, concatenation or pool only lowers acceptance, silently."""
    generator = torch.Generator().manual_seed(length)
    hidden = torch.randn(BATCH, length, HIDDEN, generator=generator)
    current = torch.randint(0, VOCAB, (BATCH,), generator=generator)
    expected = [
        plain_rollout(DOMINO_SHIFT, hidden[i], int(current[i]), min(candidates, VOCAB))
        for i in range(BATCH)
    ]
    assert propose(DOMINO_SHIFT, hidden, current, candidates) == expected


@pytest.mark.skipif(library() is None, reason="no C compiler")
@pytest.mark.parametrize("threshold", [1e-12, 0.05, 0.2, 0.9])
def test_a_block_ends_before_a_proposal_of_too_small_a_chance(threshold: float) -> None:
    """Steps that a batch never came to are no proposals; a chance of one step alone ends too late.

    The first proposal is always there.
    """
    generator = torch.Generator().manual_seed(4)
    hidden = 2 * torch.randn(BATCH, BLOCK, HIDDEN, generator=generator)
    current = torch.randint(0, VOCAB, (BATCH,), generator=generator)
    steps = [plain_steps(DOMINO_SHIFT, hidden[i], int(current[i]), 0) for i in range(BATCH)]
    kept = [sum(chance >= threshold for _, chance in of_one[1:]) for of_one in steps]
    found = propose(DOMINO_SHIFT, hidden, current, 0, threshold)
    ends = [BLOCK - 1 - length for length in kept]
    assert found == [
        [token for token, _ in of_one[: length + 1]] + [-1] * end
        for of_one, length, end in zip(steps, kept, ends, strict=True)
    ]
    assert threshold in (1e-12, 0.9) or len(set(kept)) > 1


def test_the_correction_matters() -> None:
    """Without a case that the correction changes, the loop above could be base logits alone."""
    hidden = torch.randn(BATCH, BLOCK, HIDDEN, generator=torch.Generator().manual_seed(BLOCK))
    base = (
        DFlashSampler(parts(DOMINO_SHIFT).tables.lm_head)
        .propose(hidden, torch.zeros(BATCH))
        .tolist()
    )
    domino = propose(DOMINO_SHIFT, hidden, torch.zeros(BATCH, dtype=torch.long), 0)
    assert [row[0] for row in domino] == [row[0] for row in base]
    assert domino != base


@pytest.mark.parametrize("label", FOLDERS)
def test_the_engine_drafts_from_the_rows_its_label_says(label: str) -> None:
    """Row j predicts token j + 1 with shifted labels, token j without; off by one is no error."""
    folder, rows, current = FOLDERS[label], random_rows(11, seed=3), 42
    p = parts(folder)
    model = DraftModel(
        p.config, p.checkpoint, p.tables.embedding, max_positions=64, dtype=torch.float32
    )
    kv = model.new_kv(2, 16)
    block = torch.full((BLOCK,), p.config.mask_token_id)
    block[0] = current
    with torch.inference_mode():
        model.append(rows, one_span(0, 11), kv)
        hidden = model.forward(block, one_span(11, BLOCK), kv)
    used = hidden if label == "shift" else hidden[1:]
    expected = plain_rollout(folder, used, current, 0)

    config = DraftServiceConfig(
        target=TARGET, draft=folder, threads=1, page_size=16, kv_tokens=64, int8=False
    )
    peer = Peer(load(config).engine)
    wanted = step(1, 1, 0, 11, current=current, draft_tokens=len(expected))
    answer = peer.exchange(wanted, rows=rows, opens=[peer.open(1, positions=20)])
    assert ids(answer[0]) == expected
    assert len(expected) == (BLOCK if label == "shift" else BLOCK - 1)


def one_span(start: int, count: int) -> Batch:
    return Batch([Span(start=start, count=count, pages=[0, 1])], 16, torch.device("cpu"))


def test_dflash_takes_each_rows_best() -> None:
    """DFlash is the arm that Domino is measured against."""
    hidden = torch.randn(BATCH, BLOCK, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = (hidden.double() @ double(TARGET, "lm_head.weight").T).argmax(-1)
    sampler = DFlashSampler(parts(DOMINO_SHIFT).tables.lm_head)
    assert sampler.propose(hidden, torch.zeros(BATCH)).equal(expected)


@pytest.mark.parametrize("candidates", [0, 1, 2, 9])
def test_ties_take_the_lowest_id(tmp_path: Path, candidates: int) -> None:
    """Ranks and kernels must agree on ties, or tensor-parallel replicas drift apart."""
    p = parts(DOMINO_SHIFT)
    without_correction = Checkpoint(copy_without_correction(DOMINO_SHIFT, tmp_path))
    head = torch.zeros(VOCAB, HIDDEN)
    head[[40, 7, 255]] = 1.0  # these score alike, and best
    tables, current = replace(p.tables, lm_head=Linear(head)), torch.zeros(BATCH, dtype=torch.long)
    samplers = make_samplers(p.config, without_correction, tables, candidates)
    for sampler in samplers[:2]:
        assert sampler is not None
        proposals = sampler.propose(torch.ones(BATCH, BLOCK, HIDDEN), current)
        assert proposals.tolist() == [[7] * BLOCK] * BATCH


def copy_without_correction(folder: Path, copy: Path) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors["embed_proj.2.weight"].zero_()
    save_file(tensors, copy / "model.safetensors")
    (copy / "config.json").write_text((folder / "config.json").read_text())
    return copy
