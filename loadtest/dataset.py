"""A JSONL or JSON file of prompts in, rows of turns or token ids out; every known shape by key.

ShareGPT (`conversations`: its first human turn, as SGLang takes it), Alpaca (`instruction` and
`input`), MBPP (`text`, `prompt`), chats (`messages`), MT-Bench (`turns`), `question`, token ids.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domino_cli.errors import UsageError
from domino_cli.progress import say


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Turns of the user, or token ids; one of the two is not empty."""

    turns: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()


def read_dataset(path: Path, count: int | None = None) -> list[Row]:
    """The first `count` rows, or all. Raises UsageError naming the file and the line."""
    rows: list[Row] = []
    skipped = 0
    for where, value in values(path):
        if len(rows) == count:
            break
        if is_no_exchange(value):
            skipped += 1
        else:
            rows.append(row(where, value))
    if skipped:
        say(f"{path}: {skipped} conversations without a question and an answer left out")
    if not rows:
        raise UsageError(f"{path}: no prompts in it")
    return rows


def values(path: Path) -> Iterator[tuple[str, Any]]:
    """Each JSON value of the file and where it stands; a list counts by its entries."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"dataset_path: {path} cannot be read: {error}") from error
    if text.lstrip().startswith("["):
        for number, value in enumerate(parse(str(path), text), start=1):
            yield f"{path}, entry {number}", value
        return
    # Not splitlines(): JSON strings may hold separators such as U+2028 as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, parse(where, line)


def is_no_exchange(value: Any) -> bool:
    """A ShareGPT entry that SGLang's program leaves out too: the published file has thousands."""
    turns = value.get("conversations") if isinstance(value, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return False
    return len(turns) < 2 or not str(first(turns)).strip()


def parse(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{where}: not JSON ({error}); one JSON object a line, or a list"
        ) from None


def row(where: str, value: Any) -> Row:
    """One prompt; the first known key of SHAPES decides how it is read."""
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {value!r:.60} is no object")
    for key, shape in SHAPES.items():
        if key in value:
            try:
                found = shape(value)
            except (TypeError, KeyError, AttributeError) as error:
                raise UsageError(f"{where}: {key!r} is not of the known form: {error}") from None
            return checked(where, key, found)
    raise UsageError(f"{where}: no prompt in it; known keys: {', '.join(SHAPES)}")


def checked(where: str, key: str, found: Row) -> Row:
    if not found.turns and not found.token_ids:
        raise UsageError(f"{where}: {key!r} holds no prompt")
    for turn in found.turns:
        if not isinstance(turn, str) or not turn.strip():
            raise UsageError(f"{where}: {key!r} holds an empty prompt or one that is no text")
    if any(type(token) is not int or token < 0 for token in found.token_ids):
        raise UsageError(f"{where}: {key!r} holds a token id that is not an integer of at least 0")
    return found


def text_of(key: str) -> Callable[[dict[str, Any]], Row]:
    return lambda value: Row(turns=(value[key],))


def ids_of(key: str) -> Callable[[dict[str, Any]], Row]:
    return lambda value: Row(token_ids=tuple(value[key]))


def sharegpt(value: dict[str, Any]) -> Row:
    return Row(turns=(first(value["conversations"]),))


def first(turns: list[dict[str, Any]]) -> Any:
    """The first human turn's text; where nobody is called so, the first turn's."""
    human = [turn for turn in turns if speaker(turn) in ("human", "user")]
    turn = (human or turns)[0]
    return turn.get("value", turn.get("content"))


def messages(value: dict[str, Any]) -> Row:
    return Row(turns=tuple(t["content"] for t in value["messages"] if t["role"] == "user"))


def speaker(turn: dict[str, Any]) -> str:
    return str(turn.get("from", turn.get("role")))


def alpaca(value: dict[str, Any]) -> Row:
    more = value.get("input")
    return Row(turns=(value["instruction"] + (f"\n\nInput:\n{more}" if more else ""),))


def prompt(value: dict[str, Any]) -> Row:
    found = value["prompt"]
    return Row(token_ids=tuple(found)) if isinstance(found, list) else Row(turns=(found,))


SHAPES: dict[str, Callable[[dict[str, Any]], Row]] = {
    "conversations": sharegpt,
    "messages": messages,
    "turns": lambda value: Row(turns=tuple(value["turns"])),
    "instruction": alpaca,
    "token_ids": ids_of("token_ids"),
    "prompt_ids": ids_of("prompt_ids"),
    "prompt": prompt,
    "question": text_of("question"),
    "problem": text_of("problem"),
    "text": text_of("text"),
}
