"""`domino-serve inspect`: what the services understand of a checkpoint, unloaded.

Takes a folder with or without weights, a config.json alone, or a known name.
"""

import argparse
import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from domino_cli.errors import CommandError, UsageError
from domino_cli.models import resolve_model
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.draft_format import DRAFT_FIELDS, is_draft, open_draft
from serving.errors import CheckpointError
from serving.plan import plan
from serving.target_config import TargetConfig, open_target

BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16, "BOOL": 8, "U8": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder, config.json or name")
    parser.add_argument("--target", metavar="MODEL", help="check a draft against this target")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    try:
        checkpoint, config = read(args.checkpoint, args.target)
        facts = inspect(checkpoint, config, args.target)
    except CheckpointError as error:
        raise CommandError(str(error)) from error
    print(json.dumps(facts) if args.json else as_text(facts, config))
    return 0


def read(name: str, target_name: str | None) -> tuple[Checkpoint, TargetConfig | DraftConfig]:
    """The checkpoint and its config. Raises CheckpointError naming what cannot be served."""
    path = resolve(name)
    if not is_draft(Checkpoint(path, weights=False)):
        if target_name is not None:
            raise UsageError(
                f"--target is for drafts, and {name} is a target: its config has none of "
                f"{', '.join(DRAFT_FIELDS)}"
            )
        return open_target(path, weights=False)
    if target_name is None:
        return open_draft(path, None, weights=False)
    folder = resolve(target_name)
    _, target = open_target(folder, weights=False)
    return open_draft(path, target, tokenizer=folder, weights=False)


def resolve(name: str) -> Path:
    """As for the services, and a config file by itself."""
    path = Path(name).expanduser()
    return path if path.is_file() else resolve_model(name)


def inspect(
    checkpoint: Checkpoint, config: TargetConfig | DraftConfig, target_name: str | None
) -> dict[str, Any]:
    """What is understood, by section."""
    draft: dict[str, Any] = {}
    if isinstance(config, DraftConfig):
        draft = {"checked_against": target_name, "max_draft_tokens": config.max_draft_tokens}
    return {
        "kind": "draft" if draft else "target",
        "path": str(checkpoint.path),
        "content_hash": checkpoint.content_hash(),
        "tensors": tensor_facts(checkpoint),
        "config": draft | asdict(config),
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


def as_text(facts: dict[str, Any], config: TargetConfig | DraftConfig) -> str:
    lines = [("sha256", facts["content_hash"]), ("weights", weights(facts["tensors"]))]
    lines += plan(config)
    if isinstance(config, DraftConfig):
        lines.append(("checked", facts["config"]["checked_against"] or "without a target"))
    lines += [("warning", warning) for warning in config.warnings]
    head = f"{facts['kind']} checkpoint {facts['path']}"
    return "\n".join([head, *(f"  {label:<12} {text}" for label, text in lines)])


def weights(tensors: dict[str, Any]) -> str:
    if not tensors["count"]:
        return "none here; only the config was read"
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in tensors["dtypes"].items())
    return (
        f"{tensors['count']} tensors ({dtypes}), {tensors['parameters']:,} parameters, "
        f"{tensors['bytes']:,} bytes"
    )
