"""Acceptance while training: held-out prompts in, what real drafting and verifying accepts out.

The draft is exported and read back, then run by the services' own model code (training.speculate):
accept_len of a batch is teacher-forced, this is what a server would measure.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.tokenizer import Tokenizer
from training.conversations import LineError, parse
from training.errors import TrainingError
from training.prepare import encode_messages, prompt_ids
from training.speculate import Answer, Speculation, acceptance_length, accepted_shares
from training.target import BatchTarget

MACRO = "acceptance_macro"
CORRECT = "correct it"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A prompt that is never trained on, and the workload it stands for."""

    workload: str
    ids: list[int]


def read_held_out(file: Path, target: Path, vocab_size: int) -> list[HeldOut]:
    """JSONL of {"workload", and what `data prepare` reads}; a conversation ends before its answer.

    Raises LineError at a line that is no prompt, TrainingError where there is none.
    """
    tokenizer: list[Tokenizer] = []  # only texts need one

    def encode(messages: list[dict[str, str]]) -> list[int]:
        if not tokenizer:
            tokenizer.append(Tokenizer.load(target))
        return encode_messages(tokenizer[0], messages)

    try:
        lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"held_out: {file} cannot be read: {error}") from error
    found = [_held_out(file, number, line, encode) for number, line in enumerate(lines, 1)]
    for number, prompt in enumerate(found, 1):
        if not prompt.ids or max(prompt.ids) >= vocab_size:
            reason = f"is empty or has ids above the target's {vocab_size}"
            raise LineError(file, number, reason, CORRECT)
    return found


def _held_out(
    file: Path, number: int, line: str, encode: Callable[[list[dict[str, str]]], list[int]]
) -> HeldOut:
    try:
        record = json.loads(line)
        ids = prompt_ids(parse(record), encode)
        return HeldOut(str(record.get("workload", "all")), ids)
    except ValueError as error:
        reason = str(error) if line.strip() else "is empty"
        raise LineError(file, number, reason, CORRECT) from error


def evaluate(
    target: BatchTarget,
    draft: Path,
    prompts: Sequence[HeldOut],
    *,
    width: int,
    new: int,
    more_stops: Collection[int] = (),
) -> dict[str, Any]:
    """Figures by workload of an exported draft at `width` verified positions and `new` tokens a
    prompt, their macro mean, and the base branch's where there is a head.

    more_stops: ids that end an answer beside the target's own.
    """
    speculation = Speculation(target, draft)
    stops = {*target.config.eos_token_ids, *more_stops}
    ids = [prompt.ids for prompt in prompts]
    found: dict[str, Any] = {"width": width, "workloads": {}}
    for base in (False, True) if speculation.has_head else (False,):
        answers = speculation.answers(ids, width=width, new=new, stops=stops, base_only=base)
        prefix = "base_" if base else ""
        for name, figures in by_workload(prompts, answers, width).items():
            of = found["workloads"].setdefault(name, {})
            of.update({f"{prefix}{key}": value for key, value in figures.items()})
        lengths = [w[f"{prefix}acceptance_length"] for w in found["workloads"].values()]
        found[prefix + MACRO] = round(sum(lengths) / len(lengths), 4)
    return found


def by_workload(
    prompts: Sequence[HeldOut], answers: Sequence[Answer], width: int
) -> Mapping[str, dict[str, Any]]:
    """acceptance_length: tokens emitted in verify steps over steps. accepted_shares: share of steps
    that kept at least 1, 2, ... proposals."""
    found = {}
    for name in dict.fromkeys(prompt.workload for prompt in prompts):
        some = [a for p, a in zip(prompts, answers, strict=True) if p.workload == name]
        found[name] = {
            "acceptance_length": round(acceptance_length(some), 4),
            "verify_steps": sum(len(a.accepted) for a in some),
            "accepted_shares": [round(s, 4) for s in accepted_shares(some, width - 1)],
        }
    return found
