"""What no training run can be: settings in, an OptionError naming the first impossible one out."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.option_type import OptionError

if TYPE_CHECKING:
    from training.config import TrainConfig

LONGEST_ROW = 32767  # a column is held in 16 bits
# Each: the settings, what must hold for a value that is not none, what the message says.
RULES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (
        (
            *("layers", "taps", "gru_hidden_dim", "emb_dim", "rows", "anchors", "accumulation"),
            *("steps", "clip", "chunk", "log_interval", "save_interval", "max_checkpoints"),
            *("eval_interval", "eval_tokens", "markov_rank"),
        ),
        lambda x: x > 0,
        "must be above 0",
    ),
    (("gamma",), lambda x: x > 0, "must be above 0, or none for no decay"),
    (
        ("intermediate_size", "scored_slots", "vocab_rows"),
        lambda x: x > 0,
        "must be above 0, or none",
    ),
    (("lr",), lambda x: 0 < x < math.inf, "must be above 0, and finite"),
    (("block_size",), lambda x: x >= 2, "must be at least 2"),
    (("row_length",), lambda x: 2 <= x <= LONGEST_ROW, f"must be from 2 to {LONGEST_ROW}"),
    (
        ("base_start", "base_ratio", "warmup", "floor", "soft"),
        lambda x: 0 <= x <= 1,
        "must be from 0 to 1",
    ),
    (("beta2",), lambda x: 0 <= x < 1, "must be at least 0 and below 1"),
    (
        ("ce", "l1", "confidence", "weight_decay"),
        lambda x: 0 <= x < math.inf,
        "must not be negative, and finite",
    ),
    (("base_steps", "mask_token_id"), lambda x: x >= 0, "must not be negative"),
)


def check(config: "TrainConfig") -> None:
    """Every setting by itself, then those that depend on each other."""
    for names, holds, remedy in RULES:
        for name in names:
            value = getattr(config, name)
            if value is not None and not holds(value):
                raise OptionError(name, value, remedy)
    _check_sizes(config)
    if config.vocab_rows is not None and config.head == "dspark":
        raise OptionError("vocab_rows", config.vocab_rows, "must be none for dspark")
    if config.format == "speculators" and config.head != "dflash":
        raise OptionError("format", config.format, f"has no {config.head} head; use native")
    if config.attention == "flex" and config.device == "cpu":
        raise OptionError("attention", "flex", "learns on a GPU only; use auto or dense")
    if config.parallel == "fsdp" and config.optimizer == "muon":
        raise OptionError("parallel", "fsdp", "cuts the matrices that muon needs; use adamw")


def _check_sizes(config: "TrainConfig") -> None:
    length, block = config.row_length, config.block_size
    if config.anchors > length:
        raise OptionError("anchors", config.anchors, f"must be at most row_length ({length})")
    if config.scored_slots is not None and config.scored_slots > block:
        raise OptionError(
            "scored_slots", config.scored_slots, f"must be at most block_size ({block})"
        )
    late = block - (config.scored_slots or block)
    if config.late_every < 1 or late % config.late_every:
        remedy = f"must divide the {late} slots behind scored_slots"
        raise OptionError("late_every", config.late_every, remedy)
