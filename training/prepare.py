"""`data prepare`: JSONL conversations in, token documents with loss masks and counts out.

The mask is on the assistant's tokens through the end-of-turn id; template text around them is not
learnt. A turn is found by what the target's template renders before and behind it, so that training
sees the bytes that serving sends.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from router.tokenizer import Tokenizer
from serving.errors import ServingError
from training.conversations import (
    Conversation,
    LineError,
    Tokens,
    Turn,
    answered_turns,
    at_line,
    read_lines,
)
from training.dataset import Document
from training.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """max_tokens: longer documents are cut. min_supervised: fewer, and it is dropped.
    last_turn_only: learn the last answer alone. skip_malformed: count bad lines, do not stop."""

    max_tokens: int
    vocab_size: int
    end_ids: tuple[int, ...]
    min_supervised: int = 2
    last_turn_only: bool = False
    skip_malformed: bool = False


@dataclass(slots=True)
class Prepared:
    """counts: kept, truncated, and what was dropped by its reason."""

    documents: list[Document] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """Of all documents."""
        return sum(len(document.ids) for document in self.documents)


def prepare(file: Path, tokenizer: Tokenizer, options: PrepareOptions) -> Prepared:
    """Raises LineError at the first malformed line unless they are skipped, TrainingError when
    nothing is left."""
    found = Prepared()
    for number, conversation in read_lines(file):
        try:
            if isinstance(conversation, LineError):
                raise conversation
            with at_line(file, number):
                _add(found, conversation, tokenizer, options)
        except LineError:
            if not options.skip_malformed:
                raise
            found.counts["dropped: malformed line"] += 1
    if not found.documents:
        reasons = ", ".join(f"{name} {count}" for name, count in found.counts.items())
        raise TrainingError(f"{file}: no document is left ({reasons})")
    return found


def read_prompts(
    file: Path, tokenizer: Tokenizer, vocab_size: int, *, skip_malformed: bool = False
) -> tuple[list[list[int]], dict[int, str]]:
    """Ids up to where the assistant begins: of {"text"} lines, or of conversations up to their
    first answer. Raises LineError at a malformed line or an id that the target does not have.

    With skip_malformed such a line is an empty prompt, and its reason is in the second result, by
    its place from 0.
    """
    prompts: list[list[int]] = []
    faults: dict[int, str] = {}
    for number, line in read_lines(file):
        try:
            if isinstance(line, LineError):
                raise line
            with at_line(file, number):
                ids = prompt_ids(line, partial(encode_messages, tokenizer))
            if any(i >= vocab_size for i in ids):
                raise LineError(file, number, f"has ids above the target's {vocab_size}")
        except LineError as error:
            if not skip_malformed:
                raise
            ids, faults[number - 1] = [], error.reason
        prompts.append(ids)
    return prompts, faults


def encode_messages(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    """Ids as serving makes them: by the target's template, of a target without one a lone text.

    Raises ValueError when the target's template, or the lack of one, does not allow them.
    """
    if not tokenizer.has_chat_template:
        if [m["role"] for m in messages] != ["user"]:
            raise ValueError("has several turns, and the target has no chat template; give ids")
        return tokenizer.encode_text(messages[0]["content"])
    try:
        return tokenizer.encode_chat(messages)
    except ServingError as error:
        raise ValueError(str(error)) from error


def prompt_ids(
    line: Conversation, encode: Callable[[list[dict[str, str]]], list[int]]
) -> list[int]:
    """Ids up to where the assistant begins."""
    if isinstance(line, Tokens):
        return line.ids[: line.supervised.index(True) if any(line.supervised) else None]
    until = next((i for i, t in enumerate(line) if t.role == "assistant"), len(line))
    return encode([{"role": t.role, "content": t.content} for t in line[:until]])


def _add(
    found: Prepared, conversation: Conversation, tokenizer: Tokenizer, options: PrepareOptions
) -> None:
    if isinstance(conversation, Tokens):
        ids, supervised = conversation.ids, conversation.supervised
    else:
        answers = answered_turns(conversation)
        if not answers:
            found.counts["dropped: no assistant turn"] += 1
            return
        learnt = answers[-1:] if options.last_turn_only else answers
        ids, supervised = encode(conversation, learnt, tokenizer, options.end_ids)
    if any(i >= options.vocab_size for i in ids):
        found.counts["dropped: id outside the vocabulary"] += 1
        return
    cut = len(ids) > options.max_tokens
    document = Document.of(ids[: options.max_tokens], supervised[: options.max_tokens])
    if int(document.supervised.sum()) < options.min_supervised or not document.has_anchor:
        reason = "too few supervised tokens" + (" behind the cut" if cut else "")
        found.counts[f"dropped: {reason}"] += 1
        return
    found.counts["truncated"] += cut
    found.counts["kept"] += 1
    found.documents.append(document)


def encode(
    turns: Sequence[Turn], learnt: Sequence[int], tokenizer: Tokenizer, end_ids: tuple[int, ...]
) -> tuple[list[int], list[bool]]:
    """Ids of the whole conversation, and which of them are the learnt turns'.

    Each answer is tokenized behind its prompt, as it was when it was generated.
    """
    ids: list[int] = []
    supervised: list[bool] = []
    last = max(learnt)
    for place in answered_turns(turns[: last + 1]):
        messages = [{"role": t.role, "content": t.content} for t in turns[:place]]
        prompt = encode_messages(tokenizer, messages)
        ids, supervised = _extended(ids, supervised, prompt)
        answer = [*tokenizer.encode_continuation(turns[place].content), *end_ids[:1]]
        ids = [*ids, *answer]
        supervised = [*supervised, *[place in learnt] * len(answer)]
    return ids, supervised


def _extended(
    ids: list[int], supervised: list[bool], prompt: list[int]
) -> tuple[list[int], list[bool]]:
    """The prompt of the next answer, the mask of what it repeats kept.

    A template that rewrites earlier turns (dropping old reasoning, say) leaves them unlearnt.
    """
    same = next((i for i, (a, b) in enumerate(zip(ids, prompt, strict=False)) if a != b), len(ids))
    return prompt, [*supervised[:same], *[False] * (len(prompt) - same)]
