"""Kind `training`, DSpark: block hidden states, biased logits, proposals, confidences (f6)."""

import json

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from serving.draft_config import DraftConfig, LayerAttention
from serving.rope_config import Rope
from tests.golden.fixture import FLOAT32, Fixture
from training.draft import DraftForward
from training.dspark import DSparkHeads, kept
from training.rows import Anchors, Rows


def run_dspark(fixture: Fixture) -> dict[str, Tensor]:
    """Both recorded rounds; the second one's context is all rows so far."""
    config = _config(fixture)
    weights = load_file(fixture.path / "model.safetensors")
    target, sizes = fixture.target()
    table = (sizes.vocab_size, sizes.hidden_size)
    lm_head = target.tensor(sizes.lm_head_name, table, FLOAT32)
    forward = DraftForward(config, target.tensor("model.embed_tokens.weight", table, FLOAT32))
    inputs, out, features = fixture.inputs, dict[str, Tensor](), []
    for name in ("k0", "k1"):
        features.append(inputs[f"{name}.features"])
        current = inputs[f"{name}.block_ids"][0]
        rows, anchors = _one_block(torch.cat(features), current)
        hidden = forward.hidden(weights, rows, anchors)[0, 0]
        base = F.linear(hidden, lm_head)
        found = DSparkHeads(weights).propose(hidden, base, current)
        out |= {
            f"{name}.hidden": hidden,
            f"{name}.base_logits": base,
            f"{name}.step_logits": found.logits,
            f"{name}.proposals": found.ids,
        }
        if found.confidences is not None:
            out[f"{name}.confidence_logits"] = found.confidences
            for threshold in (0.3, 0.5, 0.7):
                count = kept(found.confidences, threshold)
                out[f"{name}.kept_at_{threshold}"] = torch.tensor([count])
    return out


def _one_block(features: Tensor, current: Tensor) -> tuple[Rows, Anchors]:
    """A row of the context and the current token, and one block that starts there."""
    count = len(features)
    ids = torch.zeros(1, count + 1, dtype=torch.long)
    ids[0, count] = current
    padded = F.pad(features, (0, 0, 0, 1))[None]
    rows = Rows(
        ids=ids,
        supervised=torch.ones_like(ids).bool(),
        starts=torch.zeros_like(ids),
        features=padded,
    )
    return rows, Anchors(columns=torch.tensor([[count]]), live=torch.ones(1, 1).bool())


def _config(fixture: Fixture) -> DraftConfig:
    """A DeepSpec config, which is flat and has no head that serving knows."""
    stored = json.loads((fixture.path / "config.json").read_text())
    return DraftConfig(
        vocab_size=stored["vocab_size"],
        hidden_size=stored["hidden_size"],
        intermediate_size=stored["intermediate_size"],
        num_layers=stored["num_hidden_layers"],
        num_heads=stored["num_attention_heads"],
        num_kv_heads=stored["num_key_value_heads"],
        head_dim=stored["head_dim"],
        rms_norm_eps=stored["rms_norm_eps"],
        rope=Rope(kind="default", theta=stored["rope_theta"]),
        max_context=stored["max_position_embeddings"],
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        format="authors",
        block_size=stored["block_size"],
        target_layer_ids=tuple(stored["target_layer_ids"]),
        mask_token_id=stored["mask_token_id"],
        attention=(LayerAttention(),) * stored["num_hidden_layers"],
        shift_label=True,
        domino=None,
        draft_vocab_size=stored["vocab_size"],
    )
