"""What was understood of a checkpoint, in lines for the log at start and for `inspect`."""

import logging

from serving.draft_config import DraftConfig, LayerAttention
from serving.rope_config import Rope
from serving.target_config import TargetConfig

Lines = list[tuple[str, str]]


def log_plan(log: logging.Logger, role: str, name: str, config: TargetConfig | DraftConfig) -> None:
    """One block in the log, and a warning for everything that was assumed."""
    lines = "\n".join(f"  {label:<12} {text}" for label, text in plan(config))
    log.info("%s %s\n%s", role, name, lines)
    for warning in config.warnings:
        log.warning("%s %s: %s", role, name, warning)


def plan(config: TargetConfig | DraftConfig) -> Lines:
    """Label and text of each line."""
    return _draft(config) if isinstance(config, DraftConfig) else _target(config)


def _target(config: TargetConfig) -> Lines:
    biases = [
        name
        for name, there in (
            ("q, k, v", config.attention_bias),
            ("o", config.output_bias),
            ("mlp", config.mlp_bias),
        )
        if there
    ]
    return [
        ("model", f"{config.model_type}, {_size(config)}"),
        ("vocabulary", f"{config.vocab_size} ids, head {_tied(config)}"),
        ("biases", ", ".join(biases) or "none"),
        ("rope", _rope(config.rope)),
        ("context", f"{config.max_context} positions"),
        ("end ids", ", ".join(map(str, config.eos_token_ids)) or "none"),
    ]


def _tied(config: TargetConfig) -> str:
    return "tied to the embedding" if config.tied_embeddings else "of its own"


def _draft(config: DraftConfig) -> Lines:
    taps = ", ".join(map(str, config.target_layer_ids))
    first = 0 if config.shift_label else 1
    return [
        ("format", f"{config.format}, {_head(config)}"),
        ("network", _size(config)),
        ("taps", f"outputs of target layers {taps} (counted from 0)"),
        ("block", f"{config.block_size} positions, mask id {config.mask_token_id}"),
        (
            "proposals",
            f"{config.block_size - 1}, at most {config.max_draft_tokens}; row {first} of the block "
            "makes the first",
        ),
        ("attention", _attention(config.attention)),
        ("tables", _tables(config)),
        ("rope", _rope(config.rope)),
        ("context", f"{config.max_context} positions"),
    ]


def _head(config: DraftConfig) -> str:
    if head := config.dspark:
        sure = ", confidence head" if head.confidence else ""
        return f"DFlash with DSpark's {head.kind} Markov head (rank {head.rank}{sure})"
    if config.domino is None:
        return "DFlash without a Domino head"
    return f"DFlash with Domino head (GRU {config.domino.gru_hidden_dim}, " + (
        f"bottleneck {config.domino.emb_dim})"
    )


def _tables(config: DraftConfig) -> str:
    embedding = "own embedding" if config.own_embedding else "the target's embedding"
    head = "own head" if config.own_head else "the target's head"
    reduced = config.draft_vocab_size < config.vocab_size
    ids = f"{config.draft_vocab_size} of " if reduced else ""
    return f"{embedding}, {head}, {ids}{config.vocab_size} ids"


def _size(config: TargetConfig | DraftConfig) -> str:
    heads = f"{config.num_heads}/{config.num_kv_heads} heads of {config.head_dim}"
    return (
        f"{config.num_layers} layers, {heads}, hidden {config.hidden_size}, "
        f"intermediate {config.intermediate_size}"
    )


def _rope(rope: Rope) -> str:
    base = f"theta {rope.theta:g}"
    if rope.kind in ("default", "dynamic"):
        return f"{base}, {rope.kind}"
    scaled = f"{base}, {rope.kind} x {rope.factor:g}"
    return f"{scaled} from {rope.original_context} positions" if rope.original_context else scaled


def _attention(rules: tuple[LayerAttention, ...]) -> str:
    """Each kind once, with its layers where there are several."""
    layers: dict[LayerAttention, list[str]] = {}
    for index, rule in enumerate(rules):
        layers.setdefault(rule, []).append(str(index))
    if len(layers) == 1:
        return _rule(rules[0])
    return "; ".join(f"layers {', '.join(at)}: {_rule(rule)}" for rule, at in layers.items())


def _rule(rule: LayerAttention) -> str:
    block = "causal in the block" if rule.causal else "the whole block"
    if rule.window is None:
        return f"full context, {block}"
    start = "its own position" if rule.window_moves else "the block"
    return f"window of {rule.window} back from {start}, {block}"
