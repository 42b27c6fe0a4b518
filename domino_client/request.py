"""Keyword arguments in, a GenerateRequest out; shared by the sync and the async client."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from domino_serve.v1 import generate_pb2 as pb
from serving.contract import MODES, ModeName
from serving.errors import BadRequest

_MAX_TIMEOUT_S: Final = 1e9  # gRPC takes longer ones, and infinity, for deadlines long past
_SCALARS: Final = (
    "text",
    "request_id",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "draft_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
)


class ChatTurn(TypedDict):
    """role: "system", "user" or "assistant"."""

    role: str
    content: str


class RequestArgs(TypedDict, total=False):
    """What a request may say, besides its text; one of text, chat and token_ids is the prompt.

    None, as leaving it out, takes the server's default; sampling is greedy unless a temperature
    is given. The fields' meaning and limits are those of GenerateRequest in generate.proto.
    """

    chat: Sequence[ChatTurn] | None
    token_ids: Sequence[int] | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    mode: ModeName | None
    draft_tokens: int | None
    request_id: str | None
    timeout_s: float | None


def build_request(text: str | None, args: RequestArgs) -> pb.GenerateRequest:
    """Raises BadRequest for what the wire cannot say; the router checks the rest."""
    values: dict[str, Any] = {**args, "text": text}
    if sum(values.get(prompt) is not None for prompt in ("text", "chat", "token_ids")) != 1:
        raise BadRequest("prompt", "give exactly one of text, chat and token_ids")
    request = pb.GenerateRequest()
    for name, value in values.items():
        if value is None:
            continue
        try:
            _set(request, name, value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise BadRequest(name, f"{value!r:.100} cannot be sent: {error}") from None
    return request


def _set(request: pb.GenerateRequest, name: str, value: Any) -> None:
    """Raises TypeError, ValueError or ArithmeticError for a value of the wrong kind."""
    match name:
        case "mode":
            if value not in MODES:
                raise ValueError(f"use {', '.join(MODES)}")
            request.mode = MODES[value]
        case "chat":
            request.chat.SetInParent()
            request.chat.messages.extend(pb.ChatMessage(**turn) for turn in value)
        case "token_ids":
            request.token_ids.SetInParent()
            request.token_ids.ids.extend(value)
        case "stop" | "stop_token_ids":
            getattr(request, name).extend([value] if isinstance(value, str) else value)
        case _ if name in _SCALARS:
            setattr(request, name, value)
        case "timeout_s":
            pass  # travels as the call's deadline
        case _:
            raise TypeError("a request has no such field")


def deadline(args: RequestArgs, default_s: float | None) -> float | None:
    """Seconds that a request may take, None for ever; raises BadRequest for what is no time."""
    own = args.get("timeout_s")
    timeout_s = default_s if own is None else own
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise BadRequest("timeout_s", f"{timeout_s!r}; must be above 0 and at most 1e9, or None")
    return timeout_s
