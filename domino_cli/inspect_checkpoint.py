"""`domino-serve inspect`: what the services understand of a checkpoint, unloaded."""

import argparse
import json
import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from domino_cli.errors import UsageError
from domino_cli.models import resolve_model
from serving.checkpoint import Checkpoint, CheckpointError
from serving.draft_config import load_draft_config
from serving.target_config import load_target_config

BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16, "BOOL": 8, "U8": 8}
DRAFT_FIELDS = ("dflash_config", "projector_type")  # no target has them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or name of a model")
    parser.add_argument("--target", metavar="MODEL", help="check a draft against this target")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    try:
        facts = inspect(args.checkpoint, args.target)
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    print(json.dumps(facts) if args.json else as_text(facts))
    return 0


def inspect(name: str, target_name: str | None) -> dict[str, Any]:
    """What is understood, by section. Raises CheckpointError naming the field."""
    checkpoint = Checkpoint(resolve_model(name))
    is_draft = any(field in checkpoint.config for field in DRAFT_FIELDS)
    if target_name is not None and not is_draft:
        raise UsageError(
            f"--target is for drafts, and {name} is a target: its config has neither "
            f"{' nor '.join(DRAFT_FIELDS)}"
        )
    return {
        "kind": "draft" if is_draft else "target",
        "path": str(checkpoint.path),
        "content_hash": checkpoint.content_hash(),
        "tensors": tensor_facts(checkpoint),
        "config": draft_facts(checkpoint, target_name) if is_draft else target_facts(checkpoint),
    }


def tensor_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Counts over all tensors; bytes as stored."""
    sizes = {name: math.prod(shape) for name, shape in checkpoint.shapes.items()}
    dtypes = checkpoint.dtypes
    return {
        "count": len(sizes),
        "parameters": sum(sizes.values()),
        "bytes": sum(size * BITS.get(dtypes[name], 8) // 8 for name, size in sizes.items()),
        "dtypes": dict(Counter(dtypes.values())),
    }


def target_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    return asdict(load_target_config(checkpoint))


def draft_facts(checkpoint: Checkpoint, target_name: str | None) -> dict[str, Any]:
    """The draft's config, checked against its target or, without one, against its own claims."""
    if target_name is None:
        layers, hidden, vocab = claimed_target(checkpoint)
    else:
        target = load_target_config(Checkpoint(resolve_model(target_name)))
        layers, hidden, vocab = target.num_layers, target.hidden_size, target.vocab_size
    config = load_draft_config(
        checkpoint, target_layers=layers, target_hidden=hidden, target_vocab=vocab
    )
    return {"checked_against": target_name, **asdict(config)}


def claimed_target(checkpoint: Checkpoint) -> tuple[int, int, int]:
    """Layers, hidden size and vocabulary of the target as the draft's own config gives them."""
    names = ("num_target_layers", "hidden_size", "vocab_size")
    for name in names:
        if not isinstance(checkpoint.config.get(name), int):
            raise UsageError(f"{checkpoint.path}: {name} is absent; give the target with --target")
    layers, hidden, vocab = (checkpoint.config[name] for name in names)
    return layers, hidden, vocab


def as_text(facts: dict[str, Any]) -> str:
    tensors = facts["tensors"]
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in tensors["dtypes"].items())
    lines = [
        f"{facts['kind']} checkpoint {facts['path']}",
        f"  {'sha256':<20} {facts['content_hash']}",
        f"  {'tensors':<20} {tensors['count']} ({dtypes})",
        f"  {'parameters':<20} {tensors['parameters']:,}",
        f"  {'bytes':<20} {tensors['bytes']:,}",
    ]
    lines += [f"  {name:<20} {shown(value)}" for name, value in facts["config"].items()]
    return "\n".join(lines)


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
