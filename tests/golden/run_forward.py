"""Kinds `target`, `draft` and `rollout`: single forward passes of the project's models."""

import torch
from torch import Tensor

from domino_kernels.attention import Span
from domino_kernels.linear import Linear
from domino_kernels.norm import rms_norm
from draft_service.model import DraftModel, visibility
from draft_service.rollout import DFlashSampler, DominoSampler
from tests.golden.fixture import CPU, FLOAT32, PAGE_SIZE, Fixture, one_span
from verify_service.projection import FeatureProjection
from verify_service.target import Target

Tensors = dict[str, Tensor]


def run_target(fixture: Fixture) -> Tensors:
    """Hidden states of every layer, features, logits and a greedy continuation."""
    checkpoint, config = fixture.target()
    layers = range(config.num_layers)
    target = Target(config, checkpoint, dtype=FLOAT32, device=CPU, taps=layers)
    ids = fixture.inputs["input_ids"].flatten()
    x, taps = target.forward(ids, one_span(0, len(ids)), target.new_kv(8, PAGE_SIZE))
    states = {f"hidden_states.{layer + 1}": taps[layer] for layer in layers}
    states["hidden_states.0"] = target._embedding[ids]
    states[f"hidden_states.{len(layers)}"] = rms_norm(x, target._norm, config.rms_norm_eps)
    features = [taps[int(layer)] for layer in fixture.inputs["target_layer_ids"]]
    greedy = _greedy(target, ids, len(fixture.expected["greedy_ids"]))
    return {
        **states,
        "features": torch.cat(features, -1),
        "logits": target.logits(x),
        "greedy_ids": greedy,
    }


def _greedy(target: Target, prompt: Tensor, count: int) -> Tensor:
    kv, ids, start = target.new_kv(8, PAGE_SIZE), prompt, 0
    emitted: list[int] = []
    while len(emitted) < count:
        x, _ = target.forward(ids, one_span(start, len(ids)), kv)
        start += len(ids)
        ids = target.logits(x[-1:]).argmax(-1)
        emitted.append(int(ids))
    return torch.tensor(emitted)


def run_draft(fixture: Fixture) -> Tensors:
    """Context rows, block hidden states, logits, proposals and the draft KV (f1, f1b, f7)."""
    inputs, out = fixture.inputs, Tensors()
    if "anchors" in inputs:
        return _run_anchors(fixture)
    model, project, lm_head = _draft(fixture)
    prefixes = sorted(name.removesuffix("features") for name in inputs if "features" in name)
    kv = model.new_kv(8, PAGE_SIZE)
    for prefix in prefixes:
        positions = inputs[f"{prefix}context_positions"]
        context = project([inputs[f"{prefix}features"]])
        model.append(context, one_span(int(positions[0]), len(positions)), kv)
        committed = int(positions[-1]) + 1
        block = inputs[f"{prefix}block_ids"]
        hidden = model.forward(block, one_span(committed, len(block)), kv)
        logits = lm_head(hidden)
        label = prefix or "specforge."
        out |= {
            f"{label}context": context,
            f"{label}hidden": hidden,
            f"{label}logits": logits,
            f"{label}argmax": logits.argmax(-1),
            f"{label}proposals": DFlashSampler(lm_head).propose(hidden[None, 1:], block)[0],
        }
        if prefix.endswith("k2."):
            out |= _cache(model, prefix.split(".")[0], committed, kv.k, kv.v)
    return out | _masks(fixture)


def _draft(fixture: Fixture) -> tuple[DraftModel, FeatureProjection, Linear]:
    checkpoint, config = fixture.draft()
    tables = fixture.tables()
    model = DraftModel(config, checkpoint, tables.embedding, max_positions=512, dtype=FLOAT32)
    project = FeatureProjection(config, checkpoint, dtype=FLOAT32, device=CPU)
    return model, project, tables.lm_head


def _run_anchors(fixture: Fixture) -> Tensors:
    """One block per anchor of a recorded sequence, its context the rows before it (f7)."""
    model, project, lm_head = _draft(fixture)
    config, inputs = model.config, fixture.inputs
    blocks = []
    for anchor in inputs["anchors"].tolist():
        kv = model.new_kv(8, PAGE_SIZE)
        model.append(project([inputs["features"][:anchor]]), one_span(0, anchor), kv)
        ids = torch.full((config.block_size,), config.mask_token_id)
        ids[0] = inputs["input_ids"][anchor]
        blocks.append(model.forward(ids, one_span(anchor, len(ids)), kv))
    hidden, first = torch.stack(blocks), 0 if config.shift_label else 1
    rows, anchors = hidden[:, first:], inputs["input_ids"][inputs["anchors"]]
    sampler = DFlashSampler(lm_head, fixture.tables().target_ids)
    return {
        "hidden": hidden,
        "logits": lm_head(hidden),
        "draft_ids": DFlashSampler(lm_head).propose(rows, anchors),
        "proposals": sampler.propose(rows, anchors),
    }


def _cache(model: DraftModel, request: str, committed: int, k: Tensor, v: Tensor) -> Tensors:
    """[kv_heads, committed, head_dim] per layer, out of the pages."""

    def flat(pool: Tensor) -> Tensor:
        return pool.transpose(0, 1).flatten(1, 2)[:, :committed]

    return {
        f"{request}.cache.layer{layer}.{name}": flat(pool[layer])
        for layer in range(model.config.num_layers)
        for name, pool in (("k", k), ("v", v))
    }


def _masks(fixture: Fixture) -> Tensors:
    """Visibility of the block's queries in full and in sliding layers (f1b)."""
    if "sliding_mask" not in fixture.expected:
        return {}
    queries, keys = fixture.expected["sliding_mask"].shape
    span = Span(start=keys - queries, count=queries, pages=[0])
    rules = fixture.draft()[1].attention
    sliding = next(rule for rule in rules if rule.window)
    full = next(rule for rule in rules if not rule.window)
    return {
        "sliding_mask": visibility(sliding).mask(span, keys),
        "full_mask": visibility(full).mask(span, keys),
    }


def run_rollout(fixture: Fixture) -> Tensors:
    """Proposals of every convention and pool, step logits and GRU states (f3)."""
    checkpoint, config = fixture.draft()
    embedding, lm_head = fixture.tables().embedding, fixture.tables().lm_head
    hidden, current = fixture.inputs["block_hidden"], fixture.inputs["current"]
    rows = hidden if config.shift_label else hidden[:, 1:]
    base = lm_head(hidden)
    out = {"base_logits": base, "base_argmax": base.argmax(-1)}

    def sampler(candidates: int) -> DominoSampler:
        return DominoSampler(config, checkpoint, lm_head, embedding, candidates=candidates)

    served = rows[:, : config.block_size - 1]
    for name in fixture.expected:
        if name.startswith("sglang.pool"):
            candidates = int(name.removeprefix("sglang.pool"))
            out[name] = sampler(candidates).propose(served, current)
    out["specforge.proposals"] = sampler(0).propose(served, current)
    logits: list[Tensor] = [base[:, 0 if config.shift_label else 1]]
    states: list[Tensor] = []

    def observe(scores: Tensor, state: Tensor) -> None:
        logits.append(scores)
        states.append(state)

    out["author.proposals"] = sampler(0).propose(rows, current, observe)
    out["author.step_logits"] = torch.stack(logits, 1)
    out["author.gru_states"] = torch.stack(states, 1)
    return out
