"""Tiny drafts to break: a config and tensors of both formats, changed and saved by each test."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_format import open_draft
from serving.errors import CheckpointError

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
HIDDEN, VOCAB, LAYERS, HEADS, KV_HEADS, DIM, INNER = 16, 24, 2, 4, 2, 4, 20
GRU, BOTTLENECK, TARGET_LAYERS, BLOCK, REDUCED = 6, 5, 8, 4, 10
FULL, SLIDING = "full_attention", "sliding_attention"
SLIDES = {"layer_types": [SLIDING, FULL], "sliding_window": 9}


@dataclass(frozen=True)
class Sizes:
    """The target of these drafts."""

    num_layers: int = TARGET_LAYERS
    hidden_size: int = HIDDEN
    vocab_size: int = VOCAB


NETWORK: Config = {
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "intermediate_size": INNER,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "attention_bias": False,
    "layer_types": ["full_attention"] * LAYERS,
}


def authors(**dflash: Any) -> Config:
    """A Domino draft's config; `dflash` changes dflash_config, None removes a field."""
    head = {
        "projector_type": "domino",
        "gru_hidden_dim": GRU,
        "emb_dim": BOTTLENECK,
        "pure_draft_prefix_len": 1,
        "shift_label": True,
    }
    inner = {"mask_token_id": 23, "target_layer_ids": [1, 3, 5], **head, **dflash}
    inner = {name: value for name, value in inner.items() if value is not None}
    top = {"block_size": BLOCK, "num_target_layers": TARGET_LAYERS, "dflash_config": inner}
    return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **NETWORK, **top}


def plain_dflash(**dflash: Any) -> Config:
    """The same draft without its head."""
    head = ("projector_type", "gru_hidden_dim", "emb_dim", "pure_draft_prefix_len", "shift_label")
    return authors(**dict.fromkeys(head), **dflash)


def speculators(**top: Any) -> Config:
    """A speculators draft over a reduced vocabulary; `top` changes the top level."""
    return {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashSpeculator"],
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK - 1}],
        },
        "transformer_layer_config": {**NETWORK, "model_type": "qwen3"},
        "draft_vocab_size": REDUCED,
        "block_size": BLOCK,
        "aux_hidden_state_layer_ids": [2, 4, 6],
        "mask_token_id": 23,
        "sample_from_anchor": False,
        **top,
    }


def layer_shapes() -> Shapes:
    """Tensors of the layers, in the names the public checkpoints have."""
    q, kv = HEADS * DIM, KV_HEADS * DIM
    one: Shapes = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (q, HIDDEN),
        "self_attn.k_proj.weight": (kv, HIDDEN),
        "self_attn.v_proj.weight": (kv, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, q),
        "self_attn.q_norm.weight": (DIM,),
        "self_attn.k_norm.weight": (DIM,),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    return {f"layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in one.items()}


BACKBONE: Shapes = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    **layer_shapes(),
}
HEAD: Shapes = {
    "prefix_gru.weight_ih_l0": (3 * GRU, HIDDEN),
    "prefix_gru.weight_hh_l0": (3 * GRU, GRU),
    "embed_proj.0.weight": (BOTTLENECK, HIDDEN + GRU),
    "embed_proj.2.weight": (VOCAB, BOTTLENECK),
}
OWN: Shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (REDUCED, HIDDEN)}


def tensors(*groups: Shapes) -> dict[str, Tensor]:
    """Random tensors of these shapes; a reduced vocabulary's maps beside an own head."""
    shapes = {name: shape for group in groups for name, shape in group.items()}
    found = {name: torch.randn(shape) for name, shape in shapes.items()}
    if "lm_head.weight" in shapes:
        chosen = torch.arange(REDUCED) * 2 + 1
        found["d2t"] = chosen - torch.arange(REDUCED)
        found["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, chosen, True)
    return found


def save(folder: Path, config: Config, weights: dict[str, Tensor] | None) -> Path:
    """Writes a folder; without weights the config alone."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file(weights, folder / "model.safetensors")
    return folder


def opened(
    folder: Path, config: Config, weights: dict[str, Tensor] | None = None
) -> tuple[Checkpoint, DraftConfig]:
    """What the loader makes of it, against the target of these drafts."""
    return open_draft(save(folder, config, weights), Sizes(), weights=weights is not None)


def read(folder: Path, config: Config) -> DraftConfig:
    """What the loader makes of a config without weights."""
    return opened(folder, config)[1]


def refused(folder: Path, config: Config) -> str:
    """What is said, behind the file's name."""
    with pytest.raises(CheckpointError) as error:
        read(folder, config)
    file = str(folder / "config.json")
    assert str(error.value).startswith(file), "the file is named"
    return str(error.value).removeprefix(file)
