"""Fields of a draft's config that both checkpoint formats have, read and checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.draft_config import TargetSizes
from serving.fields import Fields
from serving.json_file import read_json_object

LAYER_TYPES = ("full_attention", "sliding_attention")
MASK_TOKEN = "<|MASK|>"
MAX_BLOCK = 1024


def check_sizes(fields: Fields, sizes: dict[str, Any], target: TargetSizes | None) -> None:
    """Raises CheckpointError where the draft cannot belong to the target."""
    if target is None:
        return
    for name in ("vocab_size", "hidden_size"):
        mine, theirs = sizes[name], getattr(target, name)
        if mine != theirs:
            raise fields.refuse(name, mine, f"the target has {theirs}; it needs its own draft")


def block_size(fields: Fields, default: int) -> int:
    """Positions of a block, the current token included."""
    if fields.get("block_size") is None:
        fields.warn("block_size", f"is absent or null, taking {default}")
    size = fields.integer("block_size", default, maximum=MAX_BLOCK)
    if size < 2:
        raise fields.refuse("block_size", size, "must be at least 2, to leave room for a proposal")
    return size


def tapped_layers(
    fields: Fields, name: str, value: Any, num_layers: int | None, *, first: int
) -> tuple[int, ...]:
    """Layers by the id of their output, from a list in which the first layer's output is `first`.

    num_layers: the target's; without it only the form of the list can be checked.
    """
    if not isinstance(value, list) or not value:
        raise fields.refuse(name, value, "must be a non-empty list of layer ids")
    last = None if num_layers is None else num_layers - 1 + first
    for index, layer in enumerate(value):
        field = f"{name}[{index}]"
        whole = isinstance(layer, int) and not isinstance(layer, bool)
        if not whole or layer < first or (last is not None and layer > last):
            known = "and above" if last is None else f"to {last}"
            raise fields.refuse(field, layer, f"the target's layers are {first} {known}")
        if layer == last:
            raise fields.refuse(field, layer, "ambiguous for the last layer (before or after norm)")
        if layer in value[:index]:
            raise fields.refuse(field, layer, "is listed twice")
    return tuple(layer - first for layer in value)


def mask_token_id(fields: Fields, vocab: int, tokenizers: Sequence[Path]) -> int:
    """The id that fills open positions; `tokenizers`: folders to look its text up in."""
    text = MASK_TOKEN if fields.get("mask_token") is None else fields.get("mask_token")
    if not isinstance(text, str) or not text:
        raise fields.refuse("mask_token", text, "must be a text")
    known = next((i for f in tokenizers if (i := _token_id(f, text)) is not None), None)
    if fields.get("mask_token_id") is None:
        if known is None:
            remedy = f"no tokenizer has {text!r} either; write the id the draft was trained with"
            raise fields.refuse("mask_token_id", None, remedy)
        fields.warn("mask_token_id", f"is absent or null, taking {known}, the id of {text!r}")
    mask = fields.integer("mask_token_id", known, minimum=0)
    if known is not None and known != mask:
        raise fields.refuse("mask_token_id", mask, f"the tokenizer has {known} for {text!r}")
    if mask >= vocab:
        remedy = f"the vocabulary has {vocab} ids, and the target's embedding is not extended"
        raise fields.refuse("mask_token_id", mask, remedy)
    return mask


def _token_id(folder: Path, text: str) -> int | None:
    """Id of a token in the folder's tokenizer.json."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    tokenizer = read_json_object(file)
    for token in tokenizer.get("added_tokens") or []:
        if token.get("content") == text:
            return int(token["id"])
    vocab = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(vocab, dict):
        return vocab.get(text)
    return next((i for i, entry in enumerate(vocab or []) if entry[0] == text), None)


def layer_kinds(fields: Fields, num_layers: int) -> list[str]:
    """Kind of each layer; full attention where the config says nothing."""
    kinds: Any = fields.get("layer_types")
    slides = next((f for f in ("use_sliding_window", "use_swa") if fields.get(f)), None)
    if kinds is None and slides:
        raise fields.refuse("layer_types", None, f"{slides} is true; say which layers slide")
    kinds = ["full_attention"] * num_layers if kinds is None else kinds
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        raise fields.refuse(
            "layer_types", kinds, f"must be a list of {num_layers} (num_hidden_layers)"
        )
    for index, kind in enumerate(kinds[:num_layers]):
        if kind not in LAYER_TYPES:
            raise fields.refuse(f"layer_types[{index}]", kind, f"only {', '.join(LAYER_TYPES)}")
    return kinds[:num_layers]


def sliding_window(fields: Fields) -> int:
    """The window of the sliding layers, the current position included."""
    if fields.get("use_sliding_window") is False:
        raise fields.refuse("use_sliding_window", False, "contradicts sliding_attention layers")
    absent = fields.get("sliding_window") is None and fields.get("swa_window_size") is not None
    return fields.integer("swa_window_size" if absent else "sliding_window")
