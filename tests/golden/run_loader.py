"""Kind `loader`: every config and set of tensor shapes of a manifest, accepted or refused (f8)."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from serving.checkpoint import Checkpoint
from serving.draft_format import load_draft_config, open_draft
from serving.draft_tensors import draft_tensors
from serving.errors import CheckpointError

Entry = dict[str, Any]
MANIFEST = "manifest.json"
# What the tiny configs of `kind: weights` leave out.
BACKBONE = {"num_attention_heads": 2, "intermediate_size": 12, "rope_theta": 10000.0}
HEAD_PARTS = ("fc.", "prefix_gru.", "embed_proj.")
EITHER = ("is also correct", "or refuse naming")  # notes that call both verdicts right


@dataclass(frozen=True)
class Sizes:
    """What an entry says of its target."""

    num_layers: int
    hidden_size: int
    vocab_size: int


def run_loader(folder: Path) -> list[dict[str, Any]]:
    """One verdict per entry of the folder's manifest."""
    entries: list[Entry] = json.loads((folder / MANIFEST).read_text())
    return [judge(entry, refusal(folder, entry)) for entry in entries]


def judge(entry: Entry, message: str | None) -> dict[str, Any]:
    """Whether the outcome (a refusal's message or None) is the expected one."""
    verdict: dict[str, Any] = {"entry": entry["id"], "refused": message}
    named = message is not None and (entry["field"] or "") in message
    right = message is None if entry["expected"] == "accept" else named
    if any(words in entry["note"] for words in EITHER):
        right = right or message is None or "projector_type" in message
    return verdict | {"ok": right, "field": entry["field"]}


def refusal(folder: Path, entry: Entry) -> str | None:
    """The loader's message, or None when it takes the entry."""
    with tempfile.TemporaryDirectory() as name:
        try:
            if entry["kind"] == "weights":
                _load_weights(Path(name), entry)
            else:
                _load_config(folder / entry["file"], Path(name), entry)
        except CheckpointError as error:
            return str(error)
    return None


def _load_config(source: Path, folder: Path, entry: Entry) -> None:
    """In a folder of its own, because the source's name holds the field to be named."""
    config = json.loads(source.read_text())
    (folder / "config.json").write_text(json.dumps(config))
    sizes = Sizes(entry["target_num_layers"], config["hidden_size"], entry["target_vocab"])
    open_draft(folder, sizes, weights=False)


def _load_weights(folder: Path, entry: Entry) -> None:
    """Zeros of the entry's shapes, the backbone completed from its config."""
    config = BACKBONE | entry["config"]
    (folder / "config.json").write_text(json.dumps(config))
    layers = max(config["dflash_config"]["target_layer_ids"]) + 2
    sizes = Sizes(layers, config["hidden_size"], config["vocab_size"])
    known = load_draft_config(Checkpoint(folder, weights=False), sizes)
    backbone = {n: s for n, s in draft_tensors(known).items() if not n.startswith(HEAD_PARTS)}
    shapes = backbone | {name: tuple(shape) for name, shape in entry["shapes"].items()}
    save_file({n: torch.zeros(s) for n, s in shapes.items()}, folder / "model.safetensors")
    open_draft(folder, sizes)
