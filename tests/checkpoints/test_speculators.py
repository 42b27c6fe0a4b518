"""The speculators format: offsets of ids, own tables, a reduced vocabulary, and its service."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from domino_cli.in_process import collect
from domino_serve.v1 import speculation_pb2 as spec
from draft_service.tables import Tables, read_tables
from serving.draft_config import LayerAttention
from serving.draft_format import open_draft
from serving.errors import CheckpointError
from serving.rope_config import Rope
from serving.target_config import open_target
from tests.checkpoints.draft_folder import (
    BACKBONE,
    BLOCK,
    FULL,
    LAYERS,
    NETWORK,
    OWN,
    REDUCED,
    SLIDING,
    VOCAB,
    Config,
    Sizes,
    authors,
    opened,
    read,
    refused,
    save,
    speculators,
    tensors,
)
from tests.engines import engines
from tests.recorded_models import PROMPTS, TARGET

GOLDEN = TARGET.parent
CPU = torch.device("cpu")


def network(**changes: Any) -> Config:
    """A config whose transformer_layer_config has changes; None removes a field."""
    inner = {**NETWORK, "model_type": "qwen3", **changes}
    inner = {name: value for name, value in inner.items() if value is not None}
    return speculators(transformer_layer_config=inner)


def test_a_draft_is_read_whole(tmp_path: Path) -> None:
    """Its ids count hidden states: read as layers, every tap is one layer late (vLLM #40727)."""
    config = read(tmp_path, speculators())
    assert (config.format, config.target_layer_ids) == ("speculators", (1, 3, 5))
    assert (config.block_size, config.max_draft_tokens, config.shift_label) == (BLOCK, 3, False)
    assert (config.draft_vocab_size, config.vocab_size) == (REDUCED, VOCAB)
    assert (config.own_embedding, config.own_head, config.domino) == (True, True, None)
    assert config.rope == Rope(kind="default", theta=10000.0)
    assert config.warnings == ()


def test_anchor_first_blocks_propose_one_more(tmp_path: Path) -> None:
    """Read with the wrong layout 1 to 4% of the proposals are accepted, silently (vLLM #56792)."""
    config = read(tmp_path, speculators(sample_from_anchor=True))
    assert (config.shift_label, config.max_draft_tokens) == (True, BLOCK)
    methods = {"proposal_methods": [{"speculative_tokens": BLOCK}], "algorithm": "dflash"}
    message = refused(tmp_path, speculators(speculators_config=methods))
    assert f"sample_from_anchor is False: contradicts speculative_tokens {BLOCK} with" in message
    read(tmp_path, speculators(speculators_config=methods, sample_from_anchor=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type is 'eagle3'"),
        ({"speculators_model_type": "dspark"}, "speculators_model_type is 'dspark'"),
        ({"speculators_model_type": None}, "speculators_model_type is absent or null"),
        (
            {"speculators_config": {"algorithm": "DOMINO"}},
            "speculators_config.algorithm is 'DOMINO'",
        ),
        ({"speculators_config": {"algorithm": "dspark"}}, "only DFLASH"),
        ({"projector_type": "domino"}, "projector_type is 'domino': no released speculators"),
        ({"dflash_config": {"mask_token_id": 1}}, "dflash_config is"),
        ({"causal": True}, "causal is True"),
        ({"markov_rank": 0}, "DSpark"),
        ({"conv_kernel_size": 2}, "DFlash-2"),
        ({"transformer_layer_config": None}, "transformer_layer_config is absent or null"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is absent or null"),
        ({"aux_hidden_state_layer_ids": [0, 2, 4]}, "aux_hidden_state_layer_ids[0] is 0"),
        ({"aux_hidden_state_layer_ids": [2, 4, 8]}, "is 8: ambiguous for the last layer"),
        ({"aux_hidden_state_layer_ids": [2, 4, 9]}, "is 9: the target's layers are 1 to 8"),
        ({"mask_token_id": None}, "mask_token_id is absent or null"),
        ({"mask_token_id": VOCAB}, "mask_token_id is 24"),
        ({"block_size": 0}, "block_size is 0"),
        ({"draft_vocab_size": VOCAB + 1}, "draft_vocab_size is 25"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0"),
        ({"sample_from_anchor": "true"}, "sample_from_anchor is 'true'"),
        ({"target_hidden_size": 32}, "target_hidden_size is 32"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: Config, words: str
) -> None:
    """The format has several algorithms under one roof; one read as another is never accepted."""
    assert words in refused(tmp_path, speculators(**changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "transformer_layer_config.model_type is 'llama'"),
        ({"hidden_act": "gelu"}, "transformer_layer_config.hidden_act is 'gelu'"),
        ({"vocab_size": 30}, "transformer_layer_config.vocab_size is 30: the target has 24"),
        ({"hidden_size": 32}, "transformer_layer_config.hidden_size is 32: the target has 16"),
        ({"layer_types": [FULL, SLIDING]}, "transformer_layer_config.sliding_window is absent"),
    ],
)
def test_fields_of_the_network_are_named_with_their_place(
    tmp_path: Path, changes: Config, words: str
) -> None:
    """Both levels have fields of the same names."""
    assert words in refused(tmp_path, network(**changes))


def test_absent_fields_are_the_formats_defaults(tmp_path: Path) -> None:
    """The network is written as the difference to Qwen3Config's defaults: 128 is not H / heads."""
    qwen3 = Sizes(num_layers=36, hidden_size=4096, vocab_size=151936)
    config = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": {"num_hidden_layers": 5},
        "aux_hidden_state_layer_ids": [2, 10],
        "mask_token_id": 7,
    }
    found = open_draft(save(tmp_path, config, None), qwen3, weights=False)[1]
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (32, 32, 128)
    assert (found.intermediate_size, found.max_context) == (22016, 32768)
    assert (found.rope.theta, found.rms_norm_eps) == (10000.0, 1e-6)
    assert (found.block_size, found.draft_vocab_size) == (8, 32000)
    assert [warning.split(" is ")[0] for warning in found.warnings] == [
        "transformer_layer_config.max_position_embeddings",
        "transformer_layer_config.rope_theta",
        "block_size",
        "sample_from_anchor",
        "draft_vocab_size",
    ]


@pytest.mark.parametrize("non_causal", [None, False, True])
def test_sliding_windows_start_before_the_block(tmp_path: Path, non_causal: bool | None) -> None:
    """For all rows alike, unlike the authors' windows, which move with the row."""
    config = network(layer_types=[SLIDING, FULL], sliding_window=6)
    config["sliding_window_non_causal"] = non_causal
    sliding = LayerAttention(causal=not non_causal, window=6, window_moves=False)
    assert read(tmp_path, config).attention == (sliding, LayerAttention())


def tables(folder: Path, config: Config, weights: dict[str, torch.Tensor]) -> Tables:
    checkpoint, found = opened(folder, config, weights)
    target = open_target(TARGET)
    return read_tables(found, checkpoint, target[1], target[0], dtype=torch.float32, device=CPU)


def test_own_tables_are_used_and_ids_mapped_by_offset(tmp_path: Path) -> None:
    """The target's head over a draft's own ids is ~1% acceptance (vllm-ascend #9795)."""
    weights = tensors(BACKBONE, OWN)
    found = tables(tmp_path, speculators(), weights)
    assert torch.equal(found.embedding, weights["embed_tokens.weight"])
    hidden = torch.randn(3, 16)
    expected = hidden.double() @ weights["lm_head.weight"].double().T
    torch.testing.assert_close(found.lm_head(hidden).double(), expected, atol=1e-5, rtol=1e-5)
    assert found.target_ids is not None
    assert found.target_ids.tolist() == [2 * i + 1 for i in range(REDUCED)]


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (torch.arange(REDUCED) * 2 + 1, "d2t[8] is 17: row 8 would be id 25"),  # ids, not offsets
        (-torch.arange(REDUCED) - 1, "d2t[0] is -1: row 0 would be id -1"),
        (torch.arange(REDUCED), "t2d marks other ids than d2t leads to"),
    ],
)
def test_a_wrong_map_of_ids_is_refused(tmp_path: Path, offsets: torch.Tensor, words: str) -> None:
    """Ids stored as ids instead of offsets point into the vocabulary as well."""
    with pytest.raises(CheckpointError) as error:
        tables(tmp_path, speculators(), tensors(BACKBONE, OWN) | {"d2t": offsets})
    assert words in str(error.value)


def test_a_reduced_vocabulary_needs_its_own_head_and_map(tmp_path: Path) -> None:
    """With the target's head the rows would be other ids."""
    weights = tensors(BACKBONE, OWN)
    del weights["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"a reduced vocabulary needs lm_head\.weight"):
        opened(tmp_path, speculators(), weights)


def test_without_own_tables_the_targets_are_borrowed(tmp_path: Path) -> None:
    """vLLM shares the target's tables where the file has none."""
    folder = GOLDEN / "f7_speculators_dflash"
    weights = {
        name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith(("embed_tokens", "lm_head", "d2t", "t2d"))
    }
    config = json.loads((folder / "config.json").read_text()) | {"draft_vocab_size": 257}
    target, sizes = open_target(TARGET)
    checkpoint, found = open_draft(save(tmp_path, config, weights), sizes)
    borrowed = read_tables(found, checkpoint, sizes, target, dtype=torch.float32, device=CPU)
    embedding = target.tensor("model.embed_tokens.weight", (257, 64), torch.float32)
    assert torch.equal(borrowed.embedding, embedding) and borrowed.target_ids is None


@pytest.mark.parametrize("name", ["f7_speculators_dflash", "f7_speculators_dflash_anchor"])
def test_served_output_is_the_plain_output(name: str) -> None:
    """Ids of the reduced vocabulary must reach the target as its own; some are accepted then."""
    with engines(TARGET, GOLDEN / name) as running:
        plain = [collect(running.submit(prompt, 60))[0] for prompt in PROMPTS]
        drafted = [
            collect(running.submit(prompt, 60, mode=spec.MODE_DFLASH, draft_tokens=7))
            for prompt in PROMPTS
        ]
    assert [ids for ids, _ in drafted] == plain
    assert sum(done.speculation.accepted_tokens for _, done in drafted) > 0


def test_the_two_formats_of_one_network_agree(tmp_path: Path) -> None:
    """The same fields, read by two readers."""
    theirs = read(tmp_path, speculators(draft_vocab_size=VOCAB))
    ours = read(tmp_path, authors(projector_type=None, gru_hidden_dim=None))
    same = {"format": ours.format, "own_embedding": False, "own_head": False}
    assert dataclasses.replace(theirs, **same) == ours  # type: ignore[arg-type]
    assert theirs.num_layers == LAYERS
