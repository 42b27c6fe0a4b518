"""The tensors of a draft file: each missing, wrong or unknown one is named; old names are read."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from serving.draft_tensors import draft_tensors
from serving.errors import CheckpointError
from tests.checkpoints.draft_folder import (
    BACKBONE,
    HEAD,
    HIDDEN,
    OWN,
    REDUCED,
    VOCAB,
    Config,
    authors,
    opened,
    plain_dflash,
    speculators,
    tensors,
)

FORMATS = {
    "domino": (authors(), (BACKBONE, HEAD)),
    "dflash": (plain_dflash(), (BACKBONE,)),
    "speculators": (speculators(), (BACKBONE, OWN)),
}


def refused(folder: Path, config: Config, weights: dict[str, Tensor]) -> str:
    with pytest.raises(CheckpointError) as error:
        opened(folder, config, weights)
    assert str(error.value).startswith(str(folder)), "the file is named"
    return str(error.value).removeprefix(str(folder))


@pytest.mark.parametrize("kind", FORMATS)
def test_each_tensor_is_missed_by_name(tmp_path: Path, kind: str) -> None:
    """SGLang loads a file without fc silently and drafts from an uninitialised one."""
    config, groups = FORMATS[kind]
    whole = tensors(*groups)
    assert sorted(draft_tensors(opened(tmp_path, config, whole)[1])) == sorted(
        set(whole) - {"d2t", "t2d"}
    )
    for name in set(whole) - {"t2d", "embed_tokens.weight", "lm_head.weight"}:
        message = refused(tmp_path, config, {n: t for n, t in whole.items() if n != name})
        assert f"tensor {name} is missing" in message


@pytest.mark.parametrize("kind", FORMATS)
def test_each_tensor_of_another_shape_is_named_with_both(tmp_path: Path, kind: str) -> None:
    """One more tap, another width or a padded vocabulary is another model."""
    config, groups = FORMATS[kind]
    whole = tensors(*groups)
    for name in set(whole) - {"t2d"}:
        first = whole[name].shape[0]
        wrong = torch.cat((whole[name], whole[name][:1]))
        message = refused(tmp_path, config, whole | {name: wrong})
        assert f"tensor {name} has shape ({first + 1}" in message and f"({first}" in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layers.2.mlp.up_proj.weight", "no layout that can be served"),
        ("causal_gru.weight_ih", "TorchSpec"),
        ("correction_w1.weight", "TorchSpec"),
        ("markov_head.markov_w1.weight", "DSpark"),
        ("candidate_selector.weight", "DFlash-2"),
        ("domino_head.embed_proj.0.weight", "no released speculators format"),
        ("layers.0.self_attn.qkv_proj.weight", "Laguna"),
        ("layers.0.self_attn.g_proj.weight", "Laguna"),
        ("draft_model.fc.weight", "prefix draft_model."),
        ("embed_tokens.weight", "uses the target's"),
        ("lm_head.weight", "uses the target's"),
        ("d2t", "speculators format only"),
        ("mask_hidden", "mask embedding"),
        ("prefix_gru.bias_ih_l0", "no layout that can be served"),
    ],
)
def test_unknown_tensors_are_refused_with_what_they_belong_to(
    tmp_path: Path, name: str, words: str
) -> None:
    """A part of the model that is left out shows only as low acceptance."""
    message = refused(tmp_path, authors(), tensors(BACKBONE, HEAD) | {name: torch.ones(3)})
    assert f"unknown tensors {name}: " in message and words in message


def test_constants_of_old_exporters_are_ignored(tmp_path: Path) -> None:
    """They follow from the config and are computed anew."""
    extra = {
        "rotary_emb.inv_freq": torch.ones(2),
        "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
        "t2d": torch.ones(VOCAB, dtype=torch.bool),
    }
    opened(tmp_path, authors(), tensors(BACKBONE, HEAD) | extra)


@pytest.mark.parametrize(
    ("canonical", "stored"),
    [
        *((name, f"model.{name}") for name in (*BACKBONE, *HEAD)),
        *((name, f"logit_head.{name}") for name in HEAD),
        ("prefix_gru.weight_hh_l0", "model.logit_head.prefix_gru.weight_hh_l0"),
        ("fc.weight", "encoder.fc.weight"),
        ("hidden_norm.weight", "encoder.output_norm_enc.weight"),
        ("fc.weight", "model.encoder.fc.weight"),
    ],
)
def test_older_names_are_read(tmp_path: Path, canonical: str, stored: str) -> None:
    """Early SpecForge exports; the tensor that is read must be the one in the file."""
    whole = tensors(BACKBONE, HEAD)
    expected = whole.pop(canonical)
    checkpoint, _ = opened(tmp_path, authors(), whole | {stored: expected})
    read = checkpoint.tensor(canonical, tuple(expected.shape), torch.float32)
    assert torch.equal(read, expected)


def test_two_tensors_for_one_name_are_refused(tmp_path: Path) -> None:
    """Which of the two was meant cannot be known."""
    weights = tensors(BACKBONE, HEAD) | {"encoder.fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN)}
    message = refused(tmp_path, authors(), weights)
    assert "encoder.fc.weight" in message and "both mean fc.weight" in message


def test_a_head_without_projector_type_is_refused(tmp_path: Path) -> None:
    """It would run as plain DFlash: slower, and nothing says why."""
    message = refused(tmp_path, plain_dflash(), tensors(BACKBONE, HEAD))
    assert "projector_type is absent or null" in message and "prefix_gru.weight_ih_l0" in message
    opened(tmp_path, plain_dflash(), tensors(BACKBONE))


def test_biases_are_read_where_the_config_has_them(tmp_path: Path) -> None:
    """SGLang's draft has none on o_proj, transformers' Qwen3 does: the file decides."""
    config, whole = authors() | {"attention_bias": True}, tensors(BACKBONE, HEAD)
    names = [f"layers.{i}.self_attn.{p}_proj" for i in range(2) for p in "qkv"]
    whole |= {f"{name}.bias": torch.ones(len(whole[f"{name}.weight"])) for name in names}
    assert not opened(tmp_path, config, whole)[1].output_bias
    out = {f"layers.{i}.self_attn.o_proj.bias": torch.ones(HIDDEN) for i in range(2)}
    assert opened(tmp_path, config, whole | out)[1].output_bias
    assert "unknown tensors" in refused(tmp_path, authors(), whole)
    del out["layers.1.self_attn.o_proj.bias"]
    assert "layers.1.self_attn.o_proj.bias is missing" in refused(tmp_path, config, whole | out)


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    """8-bit weights read as numbers, without their scales, propose nonsense."""
    wrong = {"fc.weight": torch.ones(HIDDEN, 3 * HIDDEN, dtype=torch.int8)}
    message = refused(tmp_path, authors(), tensors(BACKBONE, HEAD) | wrong)
    assert "fc.weight is stored as I8, and quantised" in message


def test_a_trained_mask_embedding_is_refused(tmp_path: Path) -> None:
    """Beside the weights, it replaces a row of the embedding: ignored, every block starts wrong."""
    (tmp_path / "mask_embedding.pt").touch()
    assert "mask_embedding.pt" in refused(tmp_path, authors(), tensors(BACKBONE, HEAD))


def test_a_map_of_ids_must_hold_integers(tmp_path: Path) -> None:
    """Offsets stored as floats lose ids above 2**24, and are another format's anyway."""
    weights = tensors(BACKBONE, OWN) | {"d2t": torch.zeros(REDUCED)}
    assert "d2t is stored as F32" in refused(tmp_path, speculators(), weights)
