"""A training run's settings: a TOML or JSON file and key=value overrides in, checked values out."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_type_hints

from serving.option_type import OptionError, OptionType
from serving.options import field
from training.config_rules import check


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """See each field's help; `domino-serve train --help` lists them."""

    target: Path = field(help="folder or name of the frozen target")
    data: Path = field(help="folder of a prepared dataset")
    output: Path = field(help="folder of the run: checkpoints and metrics")
    init: Path | None = field(None, help="draft checkpoint to start from (weights only)")
    start: Literal["new", "target"] = field(
        "new", help="weights of the layers: new ones, or copies of the target's, evenly spaced"
    )
    head: Literal["domino", "dflash", "dspark"] = field(
        "domino", help="correction by a GRU, none, or DSpark's Markov bias"
    )
    block_size: int = field(16, help="positions of a block, the anchor included")
    mask_token_id: int | None = field(
        None, help="id of open positions, which the data must not have; none: the highest of those"
    )
    shift_label: bool = field(True, help="slot k predicts position k + 1 (domino; dspark always)")
    layers: int = field(5, help="draft layers")
    taps: int = field(5, help="tapped target layers, evenly spaced")
    intermediate_size: int | None = field(None, help="MLP width; none: the target's")
    gru_hidden_dim: int = field(1024, help="width of the head's GRU")
    emb_dim: int = field(256, help="width of the head's bottleneck")
    markov_head: Literal["vanilla", "gated", "rnn"] = field("vanilla", help="kind of dspark's head")
    markov_rank: int = field(256, help="rank of dspark's bias")
    ce: float = field(0.1, help="share of the cross-entropy in dspark's loss")
    l1: float = field(0.9, help="share of the distance to the target's distribution in it")
    confidence: float = field(1.0, help="share of the confidence head in it; 0: no such head")
    row_length: int = field(1024, help="tokens of a packed row")
    rows: int = field(2, help="rows of a micro-batch")
    anchors: int = field(512, help="blocks of a row")
    accumulation: int = field(1, help="micro-batches of an optimizer step")
    steps: int = field(help="optimizer steps")
    optimizer: Literal["adamw", "muon"] = field("adamw", help="muon: for the matrices")
    lr: float = field(6e-4, help="peak learning rate")
    schedule: Literal["cosine", "wsd"] = field("cosine", help="shape behind the warm-up")
    warmup: float = field(0.04, help="share of the steps")
    floor: float = field(0.0, help="last learning rate over the peak")
    weight_decay: float = field(0.0, help="AdamW's")
    beta2: float = field(0.999, help="AdamW's second moment")
    clip: float = field(1.0, help="largest gradient norm")
    gamma: float | None = field(7.0, help="decay of a slot's weight; none: all alike")
    scored_slots: int | None = field(None, help="slots in the loss of every block; none: all")
    late_every: int = field(5, help="of the slots behind, one block in so many")
    base_start: float = field(1.0, help="base branch's share of the loss at step 0")
    base_ratio: float = field(1.0, help="share of the steps until it is 0")
    base_steps: int | None = field(None, help="steps until it is 0; 0: from the start")
    soft: float = field(0.0, help="share of the target's distribution in what is learnt")
    vocab_rows: int | None = field(
        None, help="ids that the loss ranges over, the data's most frequent ones; none: all"
    )
    features: Literal["memory", "online", "disk"] = field(
        "online", help="kept on the device, computed by batch, or kept in OUTPUT/features"
    )
    attention: Literal["auto", "flex", "dense"] = field(
        "auto", help="flex: FlexAttention in compiled layers; auto: that on a GPU, else dense"
    )
    chunk: int = field(4096, help="rows of logits at a time")
    parallel: Literal["replicated", "fsdp"] = field(
        "replicated", help="of several ranks each holds the draft, or (FSDP2, adamw) a part of it"
    )
    seed: int = field(0, help="of weights, order and anchors")
    device: str = field("cpu", help="cpu or cuda")
    dtype: Literal["float32", "bfloat16"] = field("float32", help="of the products; masters: f32")
    held_out: Path | None = field(None, help="JSONL of prompts to draft for while training")
    eval_interval: int = field(500, help="steps between two evaluations on held_out")
    eval_tokens: int = field(128, help="tokens answered to each of them")
    tensorboard: bool = field(False, help="figures to OUTPUT/tensorboard too")
    format: Literal["native", "speculators"] = field(
        "native", help="of the export: the head's own, or speculators' (dflash only)"
    )
    log_interval: int = field(10, help="steps between two metric lines")
    save_interval: int = field(500, help="steps between two checkpoints")
    max_checkpoints: int = field(2, help="checkpoints kept")
    save_optimizer: bool = field(True, help="without it a checkpoint cannot be resumed")

    def __post_init__(self) -> None:
        check(self)

    @property
    def shift(self) -> bool:
        """DFlash checkpoints predict the same position: their servers expect that."""
        return self.head == "dspark" or (self.shift_label and self.head == "domino")

    @property
    def flex(self) -> bool:
        """Whether attention is FlexAttention."""
        return self.attention == "flex" or (self.attention == "auto" and self.device != "cpu")


def load_config(file: Path, overrides: Sequence[str]) -> TrainConfig:
    """Raises OptionError naming the key, the value and the remedy."""
    kinds = {name: OptionType.of(hint) for name, hint in get_type_hints(TrainConfig).items()}
    values = _read(file) | dict(_override(text) for text in overrides)
    for name, value in values.items():
        if name not in kinds:
            near = "".join(f"did you mean {n}? " for n in get_close_matches(name, kinds, 1))
            raise OptionError(name, value, f"is unknown; {near}known: {', '.join(kinds)}")
    defaults = {s.name: s.default for s in fields(TrainConfig) if s.default is not MISSING}
    checked = {
        # null means the default; where none is a value of its own, it means none.
        name: kinds[name].checked(name, value)
        for name, value in values.items()
        if not (value is None and not kinds[name].optional and name in defaults)
    }
    missing = [s for s in fields(TrainConfig) if s.name not in checked and s.name not in defaults]
    if missing:
        wanted = "; ".join(f"{s.name} ({s.metadata['help']})" for s in missing)
        raise OptionError(missing[0].name, None, f"is required; set in {file.name}: {wanted}")
    return TrainConfig(**checked)


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise OptionError("CONFIG", str(file), f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise OptionError("CONFIG", str(file), "must hold one table of settings")
    return found


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError("override", text, "must be key=value")
    if value in ("none", "null"):
        return name, None
    try:
        return name, tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return name, value
