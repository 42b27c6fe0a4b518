"""The target's tokenizer files in; token ids of prompts and text of ids out. No transformers."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from router.chat import ChatTemplate
from serving.errors import BadRequest, StartError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """`byte_ids` are the ids of byte-fallback tokens such as <0x0A>, if the vocabulary has them."""

    def __init__(self, model: tokenizers.Tokenizer, chat: ChatTemplate | None) -> None:
        self._model = model
        self._model.no_truncation()
        self._model.no_padding()
        self._chat = chat
        vocabulary = model.get_vocab(with_added_tokens=True)
        self.num_ids = max(vocabulary.values(), default=-1) + 1
        self.byte_ids = frozenset(
            id_ for token, id_ in vocabulary.items() if _BYTE_TOKEN.fullmatch(token)
        )
        added = model.get_added_tokens_decoder().items()
        self._special_ids = frozenset(id_ for id_, token in added if token.special)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads tokenizer.json, and tokenizer_config.json and chat_template.jinja where present."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise StartError(f"{folder}: no tokenizer.json; give the target's folder")
        try:
            model = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise StartError(f"{file}: {error}") from error
        return cls(model, _chat_template(folder))

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""
        return self._chat is not None

    def encode_text(self, text: str) -> list[int]:
        """Ids of a plain prompt, with what the tokenizer itself puts around it."""
        return self._model.encode(text).ids

    def encode_continuation(self, text: str) -> list[int]:
        """Ids of a text that stands behind others: nothing is put around it."""
        return self._model.encode(text, add_special_tokens=False).ids

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a conversation up to the assistant's turn."""
        if self._chat is None:
            raise BadRequest("chat", "the target has no chat template; send text or token_ids")
        return self._model.encode(self._chat.render(messages), add_special_tokens=False).ids

    def visible(self, ids: Iterable[int]) -> list[int]:
        """`ids` without those that have no text: special tokens and padding of the vocabulary."""
        return [id_ for id_ in ids if id_ not in self._special_ids and self._model.id_to_token(id_)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens skipped; bytes that are no UTF-8 become U+FFFD."""
        return self._model.decode(ids, skip_special_tokens=True)


def _chat_template(folder: Path) -> ChatTemplate | None:
    file = folder / "tokenizer_config.json"
    config = _read_config(file)
    newer = folder / "chat_template.jinja"
    source = _read_text(newer) if newer.is_file() else _default(config.get("chat_template"))
    if source is None:
        return None
    if not isinstance(source, str):
        found = json.dumps(config["chat_template"])
        raise StartError(f"{file}: chat_template {found:.80} is no text and no list of named texts")
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    contents = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in tokens.items()
    }
    return ChatTemplate(source, {n: text for n, text in contents.items() if isinstance(text, str)})


def _default(templates: Any) -> Any:
    """The template, where there are several the one called "default"."""
    if not isinstance(templates, list):
        return templates
    named = [entry for entry in templates if isinstance(entry, dict) and "template" in entry]
    if len(named) < len(templates):
        return templates
    return {str(entry.get("name")): entry["template"] for entry in named}.get("default")


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except ValueError as error:
        raise StartError(f"{file}: {error}") from error


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read_text(file)) if file.is_file() else {}
    except ValueError as error:
        raise StartError(f"{file}: {error}") from error
    if not isinstance(config, dict):
        raise StartError(f"{file}: must hold a JSON object")
    return config
