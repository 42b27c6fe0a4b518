"""A client's request in, checked work in token ids out; whatever cannot be honoured is refused."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from router.config import RouterConfig
from router.tokenizer import Tokenizer
from serving.contract import mode_name
from serving.errors import BadRequest

_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A request that can run. draft_tokens is 0 in mode AR and at least 1 in others."""

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    stop_token_ids: frozenset[int]
    mode: spec.Mode.ValueType
    draft_tokens: int


class Admission:
    """The checks, against the served model's limits."""

    def __init__(
        self, config: RouterConfig, tokenizer: Tokenizer, model: pb.GetModelInfoResponse
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._model = model

    async def admit(self, request_id: str, request: pb.GenerateRequest) -> Work:
        """Raises BadRequest naming the field. Tokenizes off the event loop."""
        stop_ids = self._stop_ids(request)
        mode, draft_tokens = self._drafting(request)
        self._check_max_tokens(request)
        prompt_ids = await self._prompt_ids(request)
        left = self._model.max_context - len(prompt_ids)
        if left < 1:
            raise BadRequest(
                "prompt",
                f"{len(prompt_ids)} tokens, but the context of {self._model.max_context} must "
                "hold the prompt and at least one token more; shorten it",
            )
        wanted = request.max_tokens if request.HasField("max_tokens") else None
        return Work(
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_tokens=min(wanted or self._config.default_max_tokens, left),
            stop_token_ids=stop_ids,
            mode=mode,
            draft_tokens=draft_tokens,
        )

    async def _prompt_ids(self, request: pb.GenerateRequest) -> Sequence[int]:
        ids: Sequence[int]
        match request.WhichOneof("prompt"):
            case "text":
                self._check_bytes("text", [request.text])
                ids = await asyncio.to_thread(self._tokenizer.encode_text, request.text)
            case "chat":
                turns = [self._turn(turn) for turn in request.chat.messages]
                self._check_bytes("chat", [turn["content"] for turn in turns])
                ids = await asyncio.to_thread(self._tokenizer.encode_chat, turns)
            case "token_ids":
                ids = request.token_ids.ids
                if len(ids) < self._model.max_context:  # longer ones are refused as a whole
                    self._check_ids("token_ids", ids)
            case _:
                raise BadRequest("prompt", "is missing; set one of text, chat and token_ids")
        if not ids:
            raise BadRequest("prompt", "is empty; at least one token is needed")
        return ids

    def _turn(self, turn: pb.ChatMessage) -> dict[str, str]:
        if turn.role not in _ROLES:
            raise BadRequest("chat", f"role {turn.role!r} is unknown; use {', '.join(_ROLES)}")
        return {"role": turn.role, "content": turn.content}

    def _check_bytes(self, field: str, texts: list[str]) -> None:
        size, limit = sum(len(text.encode()) for text in texts), self._config.max_prompt_bytes
        if not texts or (field == "text" and size == 0):
            raise BadRequest("prompt", f"{field} is empty")
        if size > limit:
            raise BadRequest(field, f"{size} bytes of text, {limit} at most; shorten the prompt")

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        size = self._model.vocab_size
        for index, id_ in enumerate(ids):
            if not 0 <= id_ < size:
                raise BadRequest(field, f"[{index}] is {id_}, outside the vocabulary 0..{size - 1}")

    def _check_max_tokens(self, request: pb.GenerateRequest) -> None:
        if request.HasField("max_tokens") and request.max_tokens < 1:
            raise BadRequest("max_tokens", f"{request.max_tokens}; must be at least 1")

    def _stop_ids(self, request: pb.GenerateRequest) -> frozenset[int]:
        self._check_ids("stop_token_ids", request.stop_token_ids)
        eos_ids = () if request.ignore_eos else self._model.eos_token_ids
        return frozenset((*request.stop_token_ids, *eos_ids))

    def _drafting(self, request: pb.GenerateRequest) -> tuple[spec.Mode.ValueType, int]:
        mode = request.mode or self._model.default_mode
        if mode not in self._model.modes:
            names = ", ".join(map(mode_name, self._model.modes))
            raise BadRequest(
                "mode", f"{mode_name(mode)} is not served here; this server has {names}"
            )
        limit = 0 if mode == spec.MODE_AR else self._model.max_draft_tokens
        wanted = self._model.default_draft_tokens
        if request.HasField("draft_tokens"):
            wanted = request.draft_tokens
            if not 0 <= wanted <= limit:
                message = f"{wanted}; must be in 0..{limit} in mode {mode_name(mode)}"
                raise BadRequest("draft_tokens", message)
        draft_tokens = min(wanted, limit)
        return (mode, draft_tokens) if draft_tokens else (spec.MODE_AR, 0)
