"""A request's prompt in, token ids out; tokenizes off the event loop."""

import asyncio
from collections.abc import Sequence

from domino_serve.v1 import generate_pb2 as pb
from router.tokenizer import Tokenizer
from serving.errors import BadRequest

_MAX_TURNS = 4096  # millions of empty ones fit into a message of gRPC's
_ROLES = ("system", "user", "assistant")


class Prompts:
    """Limits: bytes of text, positions of the context, ids of the vocabulary."""

    def __init__(
        self, tokenizer: Tokenizer, *, max_bytes: int, max_context: int, vocab_size: int
    ) -> None:
        self._tokenizer = tokenizer
        self._max_bytes, self._max_context = max_bytes, max_context
        self._vocab_size = vocab_size

    async def ids(self, request: pb.GenerateRequest) -> Sequence[int]:
        """At least one id and room for one more; raises BadRequest naming the field."""
        ids: Sequence[int]
        match request.WhichOneof("prompt"):
            case "text":
                self._check_bytes("text", [request.text])
                ids = await asyncio.to_thread(self._tokenizer.encode_text, request.text)
            case "chat":
                turns = _turns(request.chat.messages)
                self._check_bytes("chat", [turn["content"] for turn in turns])
                ids = await asyncio.to_thread(self._tokenizer.encode_chat, turns)
            case "token_ids":
                ids = request.token_ids.ids
                if len(ids) < self._max_context:  # longer ones are refused as a whole
                    check_ids("token_ids", ids, self._vocab_size)
            case _:
                raise BadRequest("prompt", "is missing; set one of text, chat and token_ids")
        self._check_length(len(ids))
        return ids

    def _check_bytes(self, field: str, texts: list[str]) -> None:
        size = sum(len(text.encode()) for text in texts)
        if not texts or (field == "text" and size == 0):
            raise BadRequest("prompt", f"{field} is empty")
        if size > self._max_bytes:
            raise BadRequest(
                field, f"{size} bytes of text, {self._max_bytes} at most; shorten the prompt"
            )

    def _check_length(self, count: int) -> None:
        if not count:
            raise BadRequest("prompt", "is empty; at least one token is needed")
        if count >= self._max_context:
            raise BadRequest(
                "prompt",
                f"{count} tokens, but the context of {self._max_context} must "
                "hold the prompt and at least one token more; shorten it",
            )


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises BadRequest for an id outside the vocabulary."""
    for index, id_ in enumerate(ids):
        if not 0 <= id_ < vocab_size:
            raise BadRequest(
                field, f"[{index}] is {id_}, outside the vocabulary 0..{vocab_size - 1}"
            )


def _turns(messages: Sequence[pb.ChatMessage]) -> list[dict[str, str]]:
    if len(messages) > _MAX_TURNS:
        raise BadRequest("chat", f"{len(messages)} messages, {_MAX_TURNS} at most")
    return [_turn(turn) for turn in messages]


def _turn(turn: pb.ChatMessage) -> dict[str, str]:
    if turn.role not in _ROLES:
        raise BadRequest("chat", f"role {turn.role!r} is unknown; use {', '.join(_ROLES)}")
    return {"role": turn.role, "content": turn.content}
