"""What SGLang's Domino refuses at start, here: served where nothing speaks against it, or refused
with the tensor's, field's or option's name. Rules: its PRs #36899 and #37069.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draft_service.config import DraftServiceConfig
from draft_service.load import load, read_weights
from serving.errors import CheckpointError
from serving.options import OptionError
from serving.ranks import place
from tests.recorded_models import DOMINO_SHIFT, HIDDEN, TARGET, VOCAB
from tests.services.checkpoints import draft_copy

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
GRU_IN, GRU_STATE = "prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0"
W1, W2 = "embed_proj.0.weight", "embed_proj.2.weight"


def target_copy(folder: Path, changes: dict[str, Tensor], **config: object) -> Path:
    """`folder` with the recorded target, some tensors and fields replaced."""
    fields = json.loads((TARGET / "config.json").read_text()) | config
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(load_file(TARGET / "model.safetensors") | changes, folder / "model.safetensors")
    return folder


def options(
    target: Path = TARGET, draft: Path = DOMINO_SHIFT, *, dtype: str = "float32", pool: str = "0"
) -> DraftServiceConfig:
    return DraftServiceConfig(
        target=target, draft=draft, threads=1, page_size=16, kv_tokens=256, max_sessions=2,
        dtype=dtype, domino_candidates=pool,  # type: ignore[arg-type]
    )  # fmt: skip


def rows(count: int, columns: int = HIDDEN, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(count, columns, dtype=dtype)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({HEAD: rows(VOCAB + 3)}, HEAD),  # rows of added tokens
        ({HEAD: rows(VOCAB - 1)}, HEAD),
        ({EMBEDDING: rows(VOCAB + 3)}, EMBEDDING),
        ({EMBEDDING: rows(VOCAB - 1)}, EMBEDDING),
        ({HEAD: rows(VOCAB, HIDDEN + 8)}, HEAD),
        ({HEAD: rows(VOCAB, HIDDEN, torch.int8)}, HEAD),  # quantised
        ({HEAD: rows(VOCAB, HIDDEN).to(torch.float8_e4m3fn)}, HEAD),
    ],
)
def test_tables_of_the_target(tmp_path: Path, changes: dict[str, Tensor], named: str) -> None:
    """Rows that no token has, or that have no scale, would be scored with the others."""
    with pytest.raises(CheckpointError, match=named):
        read_weights(options(target_copy(tmp_path / "target", changes)), DOMINO_SHIFT)


@pytest.mark.parametrize("name", [GRU_IN, GRU_STATE, W1, W2])
def test_tensors_of_the_head(tmp_path: Path, name: str) -> None:
    """A GRU or projector of other sizes, a missing or a quantised one."""
    stored = load_file(DOMINO_SHIFT / "model.safetensors")[name]
    wrong: list[Tensor | None] = [
        None,
        torch.zeros(stored.shape[0], stored.shape[1] + 1),
        torch.zeros(stored.shape[0] + 1, stored.shape[1]),
        torch.zeros(stored.shape, dtype=torch.int8),
    ]
    for i, tensor in enumerate(wrong):
        folder = draft_copy(tmp_path / str(i), tensors={name: tensor})
        with pytest.raises(CheckpointError, match=name):
            read_weights(options(draft=folder), folder)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size"])
def test_a_draft_of_another_target(tmp_path: Path, field: str) -> None:
    """Proposals would be other tokens than the target reads them as."""
    folder = draft_copy(tmp_path / "draft", config={field: 96})
    with pytest.raises(CheckpointError, match=f"{field} is 96"):
        read_weights(options(draft=folder), folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_float_dtype_is_served(tmp_path: Path, dtype: str) -> None:
    """SGLang takes bfloat16 weights only; here files of any and of mixed dtypes are converted."""
    stored = load_file(DOMINO_SHIFT / "model.safetensors")
    mixed: dict[str, Tensor | None] = {W1: stored[W1].half(), W2: stored[W2].bfloat16()}
    folder = draft_copy(tmp_path / "draft", tensors=mixed)
    loaded = load(options(draft=folder, dtype=dtype))
    assert loaded.engine.loads().max_sessions == 2


def test_candidates() -> None:
    """A negative pool is refused; one of all tokens is mode 0 (tests/golden f3, pool 257)."""
    with pytest.raises(OptionError, match="domino_candidates"):
        options(pool="-1")
    for pool in (str(VOCAB), str(VOCAB + 1)):
        load(options(pool=pool))


def test_a_draft_without_a_head_has_no_candidates(tmp_path: Path) -> None:
    """An option that is ignored is taken for one that works."""
    without: dict[str, Tensor | None] = dict.fromkeys((GRU_IN, GRU_STATE, W1, W2))
    folder = draft_copy(tmp_path / "draft", tensors=without, nested={"projector_type": None})
    with pytest.raises(OptionError, match="Domino head"):
        load(options(draft=folder, pool="64"))


@pytest.mark.parametrize("variables", [{"RANK": "2"}, {"RANK": "-1"}, {"RANK": "x"}])
def test_a_rank_out_of_range(variables: dict[str, str]) -> None:
    """Two processes that take themselves for the same rank wait for ever."""
    with pytest.raises(OptionError, match="WORLD_SIZE"):
        place({"WORLD_SIZE": "2", **variables})
