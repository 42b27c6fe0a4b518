"""A JSONL line in, turns or ready tokens out, whatever of the common shapes it has.

Shapes: OpenAI {"messages": [{"role", "content"}]}, the same under "conversations", ShareGPT
{"conversations": [{"from", "value"}]}, a lone prompt {"text"}, tokens {"input_ids", "loss_mask"}.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import TrainingError

ROLES = {
    **{"system": "system", "user": "user", "assistant": "assistant"},
    **{"human": "user", "gpt": "assistant"},
}


@dataclass(frozen=True, slots=True)
class Turn:
    """role: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """A document that is tokenized already."""

    ids: list[int]
    supervised: list[bool]


class LineError(TrainingError):
    """A line is malformed; `line` counts from 1."""

    def __init__(
        self,
        file: Path,
        line: int,
        reason: str,
        remedy: str = "correct it or give --skip-malformed",
    ) -> None:
        super().__init__(f"{file}, line {line}: {reason}; {remedy}")
        self.line, self.reason = line, reason


Conversation = list[Turn] | Tokens


@contextmanager
def at_line(file: Path, number: int) -> Iterator[None]:
    """What is wrong with a value is said of its line."""
    try:
        yield
    except ValueError as error:
        raise LineError(file, number, str(error)) from error


def read_lines(file: Path) -> Iterator[tuple[int, Conversation | LineError]]:
    """Every line with its number; a malformed one as the error that it is.

    Raises TrainingError when the file cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"{file} cannot be read: {error}; give JSONL in UTF-8") from error
    # Not splitlines(): JSON strings may hold separators such as U+2028 as they are.
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        try:
            yield number, parse(json.loads(line))
        except ValueError as error:  # JSON's own errors are ValueErrors too
            yield number, LineError(file, number, str(error) if line.strip() else "is empty")


def parse(record: Any) -> Conversation:
    """Raises ValueError naming what is wrong."""
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    if "input_ids" in record:
        return _tokens(record["input_ids"], record.get("loss_mask"))
    if isinstance(record.get("text"), str):
        return [Turn("user", record["text"])]
    turns = record.get("messages", record.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise ValueError("has no messages, conversations or input_ids")
    return [_turn(i, turn) for i, turn in enumerate(turns)]


def _turn(index: int, turn: Any) -> Turn:
    if not isinstance(turn, dict):
        raise ValueError(f"turn {index} is no object")
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if role not in ROLES:
        raise ValueError(f"turn {index}: role {role!r} is unknown; known: {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise ValueError(f"turn {index}: content is {type(content).__name__}, not a text")
    return Turn(ROLES[role], content)


def _tokens(ids: Any, mask: Any) -> Tokens:
    whole = isinstance(ids, list) and all(type(i) is int and i >= 0 for i in ids)
    if not whole or not isinstance(mask, list) or len(mask) != len(ids):
        raise ValueError("input_ids and loss_mask must be lists of equal length, ids from 0")
    return Tokens(ids, [bool(m) for m in mask])


def answered_turns(turns: Sequence[Turn]) -> list[int]:
    """Places of the assistant's turns that have something before them."""
    return [i for i, turn in enumerate(turns) if i and turn.role == "assistant" and turn.content]
