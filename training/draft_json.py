"""config.json of a draft in the making, in the format that its head is known in.

DFlash and Domino: the DFlash authors' format. DSpark: DeepSpec's. Next: training.export.
"""

from collections.abc import Mapping
from typing import Any

from serving.checkpoint import Checkpoint
from serving.target_config import TargetConfig
from training.config import TrainConfig
from training.errors import TrainingError


def draft_json(
    config: TrainConfig, target: TargetConfig, rope: Mapping[str, Any]
) -> dict[str, Any]:
    """`rope`: the target's own rotary fields, copied."""
    mask = config.mask_token_id
    assert mask is not None, "training.mask has chosen one"
    if mask >= target.vocab_size:
        remedy = f"the target has ids 0 to {target.vocab_size - 1}"
        raise TrainingError(f"mask_token_id: {mask}: {remedy}")
    reads = {
        "target_layer_ids": tapped_layers(config.taps, target.num_layers),
        "mask_token_id": mask,
    }
    network = _network(config, target, rope)
    if config.head == "dspark":
        return {**network, "architectures": ["Qwen3DSparkModel"], **reads, **_dspark(config)}
    head = _domino(config) if config.head == "domino" else {}
    return {
        **network,
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {**reads, **head},
    }


def _network(config: TrainConfig, target: TargetConfig, rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": config.intermediate_size or target.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": target.max_context,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "block_size": config.block_size,
        "num_target_layers": target.num_layers,
        **rope,
    }


def _domino(config: TrainConfig) -> dict[str, Any]:
    return {
        "projector_type": "domino",
        "gru_hidden_dim": config.gru_hidden_dim,
        "emb_dim": config.emb_dim,
        "pure_draft_prefix_len": 1,
        "shift_label": config.shift_label,
    }


def _dspark(config: TrainConfig) -> dict[str, Any]:
    return {
        "num_anchors": config.anchors,
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_head,
        "enable_confidence_head": config.confidence > 0,
        "confidence_head_with_markov": True,
    }


def speculators_json(made: Mapping[str, Any], target_name: str) -> dict[str, Any]:
    """The speculators format of a DFlash config in the authors' one; layer ids count from 1."""
    inner = made["dflash_config"]
    outside = ("dflash_config", "architectures", "block_size", "num_target_layers", "dtype")
    network = {name: value for name, value in made.items() if name not in outside}
    kinds = ["full_attention"] * made["num_hidden_layers"]
    proposes = {"proposal_type": "greedy", "speculative_tokens": made["block_size"] - 1}
    return {
        "speculators_model_type": "dflash",
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [proposes],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target_name},
        },
        "architectures": ["DFlashSpeculator"],
        "transformer_layer_config": {**network, "layer_types": kinds},
        "draft_vocab_size": made["vocab_size"],
        "block_size": made["block_size"],
        "aux_hidden_state_layer_ids": [i + 1 for i in inner["target_layer_ids"]],
        "mask_token_id": inner["mask_token_id"],
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "dtype": made["dtype"],
    }


def tapped_layers(taps: int, layers: int) -> list[int]:
    """The authors' choice: evenly spaced outputs from layer 1 to layers - 3."""
    if taps == 1:
        return [layers // 2]
    if layers < taps + 3:
        most = max(1, layers - 3)
        raise TrainingError(f"taps: {taps}: the target has {layers} layers; tap {most} at most")
    return [round(1 + i * (layers - 4) / (taps - 1)) for i in range(taps)]


def rope_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The rotary fields of a target's config as they stand."""
    names = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
    return {n: checkpoint.config[n] for n in names if checkpoint.config.get(n) is not None}
