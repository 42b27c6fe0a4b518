"""Kind `training`, DSpark: block hidden states, biased logits, proposals, confidences (f6)."""

import json

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from domino_kernels.linear import Linear
from draft_service.dspark import DSparkSampler, kept
from draft_service.rollout import DFlashSampler
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig, DSparkHead, LayerAttention
from serving.rope_config import Rope
from tests.golden.fixture import FLOAT32, Fixture
from training.draft import DraftForward
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
    checkpoint = Checkpoint(fixture.path)
    for name in ("k0", "k1"):
        features.append(inputs[f"{name}.features"])
        current = inputs[f"{name}.block_ids"][:1]
        rows, anchors = _one_block(torch.cat(features), current[0])
        hidden = forward.hidden(weights, rows, anchors)[:, 0]
        base = F.linear(hidden, lm_head)
        out |= {f"{name}.hidden": hidden[0], f"{name}.base_logits": base[0]}
        if config.dspark is None:
            ids = DFlashSampler(Linear(lm_head)).propose(hidden, current)
            out |= {f"{name}.step_logits": base[0], f"{name}.proposals": ids[0]}
            continue
        sampler = DSparkSampler(config, checkpoint, Linear(lm_head), forward.embedding)
        found = sampler.run(hidden, current)
        out |= {f"{name}.step_logits": found.logits[0], f"{name}.proposals": found.ids[0]}
        if found.confidences is not None:
            out[f"{name}.confidence_logits"] = found.confidences[0]
            for threshold in (0.3, 0.5, 0.7):
                out[f"{name}.kept_at_{threshold}"] = kept(found.confidences, threshold)
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
    """By hand: one of them taps the embedding's output (-1), which is not served."""
    stored = json.loads((fixture.path / "config.json").read_text())
    head = None
    if stored["markov_rank"]:
        head = DSparkHead(
            kind=stored["markov_head_type"],
            rank=stored["markov_rank"],
            confidence=stored["enable_confidence_head"],
            reads_markov=stored["confidence_head_with_markov"],
        )
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
        dspark=head,
        draft_vocab_size=stored["vocab_size"],
    )
