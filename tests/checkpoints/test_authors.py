"""The DFlash authors' config: every rule, each optional field null, everything refused by name."""

import copy
from pathlib import Path

import pytest

from serving.draft_config import DominoHead, LayerAttention
from serving.draft_format import open_draft
from serving.errors import CheckpointError
from serving.rope_config import Rope
from tests.checkpoints.draft_folder import (
    BLOCK,
    BOTTLENECK,
    FULL,
    GRU,
    LAYERS,
    SLIDES,
    SLIDING,
    TARGET_LAYERS,
    VOCAB,
    Config,
    Sizes,
    authors,
    plain_dflash,
    read,
    refused,
    save,
)


def test_a_domino_draft_is_read_whole(tmp_path: Path) -> None:
    """One field read from the wrong place is a draft that runs and is never accepted."""
    config = read(tmp_path, authors())
    assert (config.format, config.block_size, config.max_draft_tokens) == ("authors", BLOCK, BLOCK)
    assert (config.target_layer_ids, config.mask_token_id) == ((1, 3, 5), 23)
    assert config.domino == DominoHead(gru_hidden_dim=GRU, emb_dim=BOTTLENECK)
    assert config.attention == (LayerAttention(),) * LAYERS
    assert config.rope == Rope(kind="default", theta=10000.0)
    assert (config.own_embedding, config.own_head, config.draft_vocab_size) == (False, False, VOCAB)
    assert config.warnings == ()


@pytest.mark.parametrize("shift", [True, False])
def test_the_label_decides_how_many_tokens_a_block_proposes(tmp_path: Path, shift: bool) -> None:
    """Row 0 proposes with shifted labels only: B or B - 1 tokens."""
    config = read(tmp_path, authors(shift_label=shift))
    assert (config.shift_label, config.max_draft_tokens) == (shift, BLOCK - (not shift))


def test_architectures_say_nothing_and_projector_type_all(tmp_path: Path) -> None:
    """Public Domino files carry both DFlashDraftModel and DominoDraftModel."""
    for name in ("DFlashDraftModel", "DominoDraftModel", "Anything"):
        assert read(tmp_path, authors() | {"architectures": [name]}).domino
        assert read(tmp_path, plain_dflash() | {"architectures": [name]}).domino is None
    assert read(tmp_path, authors(projector_type="causal_v5")).domino


@pytest.mark.parametrize("field", ["block_size", "emb_dim"])
def test_a_field_may_be_in_either_place_and_must_agree(tmp_path: Path, field: str) -> None:
    """SpecForge writes them inside, the authors' class reads the top level."""
    value = BLOCK if field == "block_size" else BOTTLENECK
    nested, top = authors(**{field: value}), authors(**{field: None}) | {field: value}
    nested.pop("block_size") if field == "block_size" else None
    expected = read(tmp_path, authors())
    assert read(tmp_path, nested) == expected == read(tmp_path, top)
    message = refused(tmp_path, authors(**{field: value}) | {field: value + 1})
    assert f"{field} is {value}: the top level says {value + 1}" in message


@pytest.mark.parametrize(
    ("field", "assumed"),
    [
        ("num_key_value_heads", None),
        ("hidden_act", None),
        ("rms_norm_eps", None),
        ("attention_bias", None),
        ("layer_types", None),
        ("rope_scaling", None),
        ("architectures", None),
        ("num_target_layers", None),
        ("sliding_window", None),
        ("use_sliding_window", None),
        ("causal", None),
        ("is_causal", None),
        ("mask_token", None),
        ("text_config", None),
        ("output_multiplier", None),
        ("vocab_size", None),
        ("head_dim", None),
        ("max_position_embeddings", "max_position_embeddings is absent or null, taking 32768"),
        ("block_size", "block_size is absent or null, taking 16"),
    ],
)
def test_optional_fields_may_be_null(tmp_path: Path, field: str, assumed: str | None) -> None:
    """Exporters write null for what they do not set (vLLM #1138, #1141, speculators)."""
    config = read(tmp_path, authors() | {field: None})
    assert config.warnings == ((assumed,) if assumed else ())
    assert (config.vocab_size, config.head_dim) == (VOCAB, 4)


@pytest.mark.parametrize(
    "field",
    ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "rope_theta"],
)
def test_required_fields_are_named_when_null_or_absent(tmp_path: Path, field: str) -> None:
    """A default for a size builds another network."""
    config = authors()
    assert f"{field} is absent or null" in refused(tmp_path, config | {field: None})
    del config[field]
    assert f"{field} is absent or null" in refused(tmp_path, config)


@pytest.mark.parametrize(
    "field", ["gru_hidden_dim", "emb_dim", "pure_draft_prefix_len", "shift_label", "mask_token_id"]
)
def test_required_fields_of_the_head_are_named(tmp_path: Path, field: str) -> None:
    """The authors' class has defaults for these that hide mistakes."""
    config = authors()
    config["dflash_config"][field] = None
    assert f"{field} is absent or null" in refused(tmp_path, config)


@pytest.mark.parametrize(
    ("layers", "target", "ids"),
    [
        (1, 8, (4,)),
        (2, 8, (1, 5)),
        (3, 9, (1, 4, 6)),
        (5, 36, (1, 9, 17, 25, 33)),
        (5, 64, (1, 16, 31, 46, 61)),
        (5, 28, (1, 7, 13, 19, 25)),
    ],
)
def test_absent_taps_follow_the_authors_formula(
    tmp_path: Path, layers: int, target: int, ids: tuple[int, ...]
) -> None:
    """The published choices; Python's round is part of the formula."""
    config = authors(target_layer_ids=None)
    config |= {"num_hidden_layers": layers, "layer_types": None, "num_target_layers": target}
    found = open_draft(save(tmp_path, config, None), Sizes(num_layers=target), weights=False)[1]
    assert found.target_layer_ids == ids
    assert found.warnings == (f"target_layer_ids is absent or null, taking {list(ids)}",)


def test_another_count_of_target_layers_is_only_a_warning(tmp_path: Path) -> None:
    """Ids are checked against the real target; some exporters count an embedding layer."""
    config = read(tmp_path, authors() | {"num_target_layers": 40})
    assert config.warnings == (f"num_target_layers is 40, the target has {TARGET_LAYERS} layers",)


def test_a_text_config_counts_first(tmp_path: Path) -> None:
    """Drafts of multimodal targets keep their sizes in text_config."""
    config = copy.deepcopy(authors())
    moved = {name: config.pop(name) for name in ("num_hidden_layers", "hidden_size", "rope_theta")}
    assert read(tmp_path, config | {"text_config": moved}) == read(tmp_path, authors())


def test_a_forgotten_projector_type_is_pointed_out(tmp_path: Path) -> None:
    """Without weights nothing else shows that a Domino draft would run as plain DFlash."""
    config = read(tmp_path, authors(projector_type=None))
    assert config.domino is None
    assert "projector_type is absent" in config.warnings[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [LayerAttention()] * 2),
        ({"causal": True}, [LayerAttention(causal=True)] * 2),
        ({"is_causal": False}, [LayerAttention()] * 2),
        (SLIDES, [LayerAttention(causal=True, window=9), LayerAttention()]),
        ({**SLIDES, "causal": False}, [LayerAttention(window=9), LayerAttention()]),
        (
            {**SLIDES, "is_causal": True},
            [LayerAttention(causal=True, window=9), LayerAttention(causal=True)],
        ),
        (
            {"layer_types": [SLIDING] * 2, "swa_window_size": 11},
            [LayerAttention(causal=True, window=11)] * 2,
        ),
        ({"layer_types": [FULL] * 3}, [LayerAttention()] * 2),
    ],
)
def test_attention_by_layer(
    tmp_path: Path, changes: Config, expected: list[LayerAttention]
) -> None:
    """Sliding layers are causal, full ones are not, an override counts for both (#34262)."""
    config = read(tmp_path, authors() | changes)
    assert list(config.attention) == expected and config.warnings == ()


def test_a_window_smaller_than_the_block_is_pointed_out(tmp_path: Path) -> None:
    """Training and serving code of the authors disagree there."""
    config = read(tmp_path, authors() | SLIDES | {"sliding_window": 3})
    assert config.warnings == ("sliding_window is 3, less than the block of 4",)


def test_without_a_target_the_drafts_own_claims_count(tmp_path: Path) -> None:
    """`inspect` must find a wrong tap even when the target is elsewhere."""
    folder = save(tmp_path, authors(target_layer_ids=[1, 7]), None)
    with pytest.raises(CheckpointError, match="ambiguous for the last layer"):
        open_draft(folder, None, weights=False)
    folder = save(tmp_path, authors(target_layer_ids=[1, 7]) | {"num_target_layers": None}, None)
    assert open_draft(folder, None, weights=False)[1].target_layer_ids == (1, 7)
    folder = save(tmp_path, authors(target_layer_ids=None) | {"num_target_layers": None}, None)
    with pytest.raises(CheckpointError, match="target_layer_ids is absent"):
        open_draft(folder, None, weights=False)
