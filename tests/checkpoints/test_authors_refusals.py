"""Drafts of the authors' format that are refused: other networks and bad values, each by name."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.draft_folder import (
    FULL,
    SLIDES,
    SLIDING,
    VOCAB,
    Config,
    authors,
    plain_dflash,
    read,
    refused,
)

DFLASH_2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
DSPARK = ("markov_rank", "markov_head_type", "enable_confidence_head")


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        *((field, 4, "DFlash-2") for field in DFLASH_2),
        *((field, 0, "DSpark") for field in DSPARK),
        ("gru_hidden_size", 8, "TorchSpec"),
        ("correction_rank", 8, "TorchSpec"),
        ("algorithm", "DOMINO", "Domino is a head and not an algorithm"),
        ("speculative_algorithm", "DOMINO", "projector_type"),
        ("algorithm", "EAGLE3", "only DFLASH"),
        ("quantization_config", {"bits": 4}, "quantised"),
        ("output_multiplier", 0.5, "variant"),
        ("final_logit_softcapping", 30.0, "variant"),
        ("attention_sink_bias", True, "variant"),
        ("is_neox_style", False, "only true"),
        ("rope_is_neox_style", False, "only true"),
    ],
)
def test_other_networks_are_refused_with_the_reason(
    tmp_path: Path, field: str, value: Any, words: str, nested: bool
) -> None:
    """Each of them loads as a DFlash draft that is hardly ever right."""
    config = authors(**{field: value}) if nested else authors() | {field: value}
    message = refused(tmp_path, config)
    assert f"{field} is {value!r}" in message and words in message


@pytest.mark.parametrize("field", ["sample_from_anchor", "query_zero_predicts_next"])
def test_anchor_first_fields_must_agree_with_what_is_served(tmp_path: Path, field: str) -> None:
    """Read with the wrong shift an anchor-first draft accepts 1.06 tokens, silently (#40144)."""
    message = refused(tmp_path, plain_dflash(**{field: True}))
    assert f"{field} is True: anchor-first DFlash" in message
    read(tmp_path, plain_dflash(**{field: False}))
    read(tmp_path, authors(shift_label=True, **{field: True}))
    assert "contradicts shift_label" in refused(
        tmp_path, authors(shift_label=False, **{field: True})
    )
    assert "contradicts shift_label" in refused(
        tmp_path, authors(shift_label=True, **{field: False})
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dflash_config": []}, "dflash_config is []: must be an object"),
        ({"text_config": 3}, "text_config is 3: must be an object"),
        ({"block_size": 1}, "block_size is 1: must be at least 2"),
        ({"block_size": 4096}, "block_size is 4096: must be at most"),
        ({"vocab_size": VOCAB + 1}, "vocab_size is 25: the target has 24"),
        ({"hidden_size": 32}, "hidden_size is 32: the target has 16"),
        ({"num_target_layers": 0}, "num_target_layers is 0"),
        ({"num_target_layers": "8"}, "num_target_layers is '8'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers is 5000: must be at most"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type is 'longrope'"),
        ({"layer_types": [FULL]}, "layer_types is ['full_attention']: must be a list of 2"),
        ({"layer_types": [FULL, "chunked"]}, "layer_types[1] is 'chunked'"),
        ({"layer_types": [FULL, SLIDING]}, "sliding_window is absent or null"),
        ({**SLIDES, "sliding_window": 0}, "sliding_window is 0"),
        ({**SLIDES, "use_sliding_window": False}, "use_sliding_window is False: contradicts"),
        ({"layer_types": None, "use_sliding_window": True}, "layer_types is absent or null"),
        ({**SLIDES, "causal": False, "sliding_window": 3}, "must cover the block"),
        ({"causal": True, "is_causal": False}, "is_causal is False: causal says otherwise"),
        ({"causal": "yes"}, "causal is 'yes': must be true or false"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, changes: Config, words: str) -> None:
    """The message is all that the owner of the file has to go by."""
    assert words in refused(tmp_path, authors() | changes)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "target_layer_ids is []"),
        ("1,3", "target_layer_ids is '1,3'"),
        ([1, -1], "target_layer_ids[1] is -1"),
        ([1, True], "target_layer_ids[1] is True"),
        ([1, 8], "target_layer_ids[1] is 8: the target's layers are 0 to 7"),
        ([1, 7], "target_layer_ids[1] is 7: ambiguous for the last layer"),
        ([3, 3], "target_layer_ids[1] is 3: is listed twice"),
    ],
)
def test_taps_must_be_layers_of_the_target(tmp_path: Path, ids: Any, words: str) -> None:
    """A layer that is not there, or is normed already, feeds the draft something else."""
    assert words in refused(tmp_path, authors(target_layer_ids=ids))
