"""What a target's config may say, and everything that is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.checkpoints.target_folder import WEIGHTS, change, change_tensors, config_of, refused
from tests.tiny_models import VOCAB
from verify_service.config import VerifyConfig
from verify_service.load import load


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("quantization_config", {"quant_method": "gptq"}, "quantised"),
        ("compression_config", {"format": "pack"}, "quantised"),
        ("num_experts", 8, "mixture-of-experts"),
        ("num_local_experts", 8, "mixture-of-experts"),
        ("n_routed_experts", 64, "mixture-of-experts"),
        ("moe_intermediate_size", 768, "mixture-of-experts"),
        ("vision_config", {"depth": 2}, "multimodal"),
        ("text_config", {"hidden_size": 8}, "multimodal"),
        ("audio_config", {"depth": 2}, "multimodal"),
        ("peft_type", "LORA", "merge the adapter"),
        ("pipeline_parallel_size", 2, "pipeline"),
        ("pp_size", 4, "pipeline"),
        ("dflash_config", {"mask_token_id": 1}, "--draft"),
        ("speculators_model_type", "dflash", "--draft"),
        ("model_type", "mistral", "only llama, qwen2, qwen3"),
        ("model_type", None, "absent or null"),
        ("hidden_act", "gelu", "only silu"),
        ("layer_types", ["full_attention", "sliding_attention"] * 3, "only full_attention"),
        ("layer_types", "full_attention", "only full_attention"),
        ("rope_interleaved", True, "only false"),
        ("num_key_value_heads", 4, "must divide"),
        ("num_attention_heads", 0, "at least 1"),
        ("num_hidden_layers", 10**9, "at most"),
        ("hidden_size", None, "absent or null"),
        ("vocab_size", True, "whole number"),
        ("vocab_size", 131.0, "whole number"),
        ("rms_norm_eps", 0, "above 0"),
        ("rms_norm_eps", "1e-6", "above 0"),
        ("head_dim", 15, "even"),
        ("tie_word_embeddings", "no", "true or false"),
        ("attention_bias", 1, "true or false"),
        ("eos_token_id", -1, "ids"),
        ("eos_token_id", [2, True], "ids"),
        ("eos_token_id", VOCAB, "ids"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    qwen3: Path, field: str, value: Any, words: str
) -> None:
    """A model that is nearly a dense one would start, and answer nonsense."""
    change(qwen3, **{field: value})
    message = refused(qwen3)
    assert f"{field} is " in message and words in message


def test_qwens_sliding_layers_are_refused_only_where_there_are_any(qwen3: Path) -> None:
    """Qwen files carry a window that no layer uses; others use it from max_window_layers on."""
    config = json.loads((qwen3 / "config.json").read_text())
    del config["layer_types"]
    (qwen3 / "config.json").write_text(json.dumps(config))
    change(qwen3, use_sliding_window=True, sliding_window=32, max_window_layers=5)
    assert config_of(qwen3).num_layers == 5
    change(qwen3, max_window_layers=4)
    assert "use_sliding_window is True" in refused(qwen3)


@pytest.mark.parametrize(
    "field",
    [
        *("num_key_value_heads", "hidden_act", "rms_norm_eps", "attention_bias", "layer_types"),
        *("tie_word_embeddings", "max_position_embeddings", "eos_token_id", "use_sliding_window"),
        *("sliding_window", "mlp_bias", "quantization_config", "rope_scaling", "vision_config"),
    ],
)
def test_optional_fields_may_be_null(qwen3: Path, field: str) -> None:
    """Exporters write null for what they do not set; vLLM #1138 and others stumbled over it."""
    change(qwen3, num_key_value_heads=6)
    weights = load_file(qwen3 / WEIGHTS)
    wide = {n: t.repeat(3, 1) for n, t in weights.items() if "k_proj" in n or "v_proj" in n}
    change_tensors(qwen3, **wide)
    change(qwen3, **{field: None})
    config = config_of(qwen3)
    assert (config.num_kv_heads, config.eos_token_ids) == (
        6,
        () if field == "eos_token_id" else (2,),
    )


def test_qwen3_without_head_dim_has_transformers_default(qwen3: Path) -> None:
    """Qwen3's default is 128 and not hidden / heads; the shapes show which one is meant."""
    change(qwen3, head_dim=None)
    assert "shape (96, 48), expected (768, 48)" in refused(qwen3)


def test_generation_config_gives_the_end_ids(qwen3: Path) -> None:
    """Chat models end with an id that only generation_config.json has: answers would run on."""
    change(qwen3, "generation_config.json", eos_token_id=[7, 2, 7])
    assert config_of(qwen3).eos_token_ids == (7, 2)
    change(qwen3, "generation_config.json", eos_token_id=None)
    assert config_of(qwen3).eos_token_ids == (2,)
    change(qwen3, "generation_config.json", eos_token_id=VOCAB)
    assert "generation_config.json: eos_token_id is 131" in refused(qwen3)
    (qwen3 / "generation_config.json").write_text("[1]")
    assert "generation_config.json: expected a JSON object" in refused(qwen3)


def test_old_llama_files_may_leave_out_what_transformers_defaults(llama: Path) -> None:
    """Llama-2's config has no rope_theta; taking 10000 is right, and worth a line."""
    config = json.loads((llama / "config.json").read_text())
    del config["rope_parameters"], config["max_position_embeddings"]
    (llama / "config.json").write_text(json.dumps(config))
    read = config_of(llama)
    assert (read.rope.theta, read.max_context) == (10000.0, 2048)
    assert read.warnings == (
        "max_position_embeddings is absent or null, taking 2048",
        "rope_theta is absent or null, taking 10000",
    )


def test_dynamic_scaling_is_served_up_to_the_unscaled_context(llama: Path) -> None:
    """Beyond it transformers' frequencies depend on the length of the whole sequence."""
    scaling = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    change(llama, rope_parameters=scaling, max_position_embeddings=64)
    read = config_of(llama)
    assert read.max_context == 64
    assert read.warnings == ("rope type is dynamic: served up to the 64 unscaled positions",)


def test_a_context_of_millions_needs_no_table_of_that_size(qwen3: Path) -> None:
    """Angles of positions that no page can hold would take gigabytes before the first request."""
    change(qwen3, max_position_embeddings=2**31 - 1, rope_parameters=None, rope_theta=1e6)
    config = VerifyConfig(target=qwen3, kv_tokens=64, page_size=16, threads=1)
    assert load(config).info.max_context == 64
    assert config_of(qwen3).max_context == 2**31 - 1
    change(qwen3, max_position_embeddings=2**31)
    assert "max_position_embeddings is 2147483648: must be at most" in refused(qwen3)
