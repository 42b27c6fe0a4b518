"""Rotary embeddings against transformers' own tables, and every form a config may have them in."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from domino_kernels.rope import RotaryTable
from serving.errors import CheckpointError
from serving.fields import Fields
from serving.rope_config import Rope, context_limit, read_rope

ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 1024}
CASES: dict[str, dict[str, Any] | None] = {
    "absent": None,
    "default": {"rope_type": "default"},
    "linear": {"type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 2048},
    "yarn_all": {
        "rope_type": "yarn",
        "factor": 40.0,
        ORIGINAL: 256,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn_attention": {"type": "yarn", "factor": 4.0, "attention_factor": 1.3, ORIGINAL: 512},
    "yarn_no_original": {"type": "yarn", "factor": 4.0},
}
POSITIONS = 8192


def rope(config: dict[str, Any], default: float | None = None) -> Rope:
    return read_rope(Fields(Path("config.json"), config), POSITIONS, default)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("head_dim", [16, 128])
@pytest.mark.filterwarnings("ignore")
def test_tables_equal_transformers_up_to_the_last_position(case: str, head_dim: int) -> None:
    """A scaling that is slightly off shows only far beyond the original context."""
    scaling = CASES[case]
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        rope_theta=5e5,
        **({"rope_scaling": dict(scaling)} if scaling else {}),
    )
    oracle = LlamaRotaryEmbedding(config)
    cos, sin = oracle(torch.zeros(1), torch.arange(POSITIONS)[None])
    ours = rope({"rope_theta": 5e5, "rope_scaling": scaling})
    table = RotaryTable(head_dim, ours, POSITIONS, torch.float32, torch.device("cpu"))
    ours_cos, ours_sin = table.at(torch.arange(POSITIONS))
    half = head_dim // 2
    torch.testing.assert_close(ours_cos[:, 0], cos[0, :, :half], atol=1e-6, rtol=0)
    torch.testing.assert_close(ours_sin[:, 0], sin[0, :, :half], atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", [name for name, scaling in CASES.items() if scaling])
def test_the_forms_of_transformers_4_and_5_mean_the_same(case: str) -> None:
    """transformers 4 reads the newer form as theta 10000, silently; issue sglang #27477."""
    scaling = CASES[case] or {}
    old = rope({"rope_theta": 1e7, "rope_scaling": scaling})
    assert old == rope({"rope_parameters": {"rope_theta": 1e7, **scaling}})
    assert old == rope({"rope_theta": 1e7, "rope_parameters": {"rope_theta": 1e7, **scaling}})
    assert old.theta == 1e7


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({}, "rope_theta is absent"),
        ({"rope_theta": None}, "rope_theta is absent"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_theta": 1}, "rope_theta is 1"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": "1e6"}, "rope_theta is '1e6'"),
        ({"rope_theta": 1e4, "rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_parameters.rope_theta"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "mrope"}}, "rope_scaling.type is 'mrope'"),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type"),
        ({"rope_theta": 1e4, "rope_scaling": {"mrope_section": [1]}}, "rope_scaling.mrope_section"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear"}}, "rope_scaling.factor is absent"),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 0.5}}, "factor is 0.5"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor is 0.5",
        ),
        (
            {
                "rope_theta": 1e4,
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "default"},
            },
            "rope_scaling is",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}, "rope_theta": 1e4},
            "rope_parameters.full_attention",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    """Every parameter of the rotary embedding changes the output; none may be dropped."""
    with pytest.raises(CheckpointError, match=r"config\.json: ") as refused:
        rope(config)
    assert named in str(refused.value)


@pytest.mark.parametrize("missing", LLAMA3)
def test_llama3_needs_all_its_parameters(missing: str) -> None:
    """A default would stand for another model's training."""
    scaling = {name: value for name, value in LLAMA3.items() if name != missing}
    with pytest.raises(CheckpointError, match=f"rope_scaling.{missing} is absent"):
        rope({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}})


def test_a_missing_theta_is_filled_only_where_transformers_has_one() -> None:
    """Old Llama files leave it out; a draft without it would be rotated like its target."""
    fields = Fields(Path("config.json"), {})
    assert read_rope(fields, 64, 10000.0).theta == 10000.0
    assert fields.warnings == ["rope_theta is absent or null, taking 10000"]


def test_yarn_serves_the_scaled_context() -> None:
    """Qwen3's recipe adds YaRN and leaves max_position_embeddings at its unscaled 40960."""
    scaling = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32768}
    yarn = rope({"rope_theta": 1e6, "rope_scaling": scaling})
    assert context_limit(yarn, 40960) == 131072
    assert context_limit(rope({"rope_theta": 1e6}), 40960) == 40960
