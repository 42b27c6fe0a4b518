"""Keyword arguments in, a GenerateRequest out; shared by the sync and the async client."""

from collections.abc import Sequence
from typing import TypedDict

from domino_serve.v1 import generate_pb2 as pb
from serving.contract import MODES, ModeName
from serving.errors import BadRequest


class ChatTurn(TypedDict):
    """role: "system", "user" or "assistant"."""

    role: str
    content: str


class RequestArgs(TypedDict, total=False):
    """What a request may say, besides its text; one of text, chat and token_ids is the prompt.

    None, as leaving it out, takes the server's default.
    """

    chat: Sequence[ChatTurn] | None
    token_ids: Sequence[int] | None
    max_tokens: int | None
    stop_token_ids: Sequence[int]
    ignore_eos: bool | None
    mode: ModeName | None
    draft_tokens: int | None
    request_id: str | None
    timeout_s: float | None


def build_request(text: str | None, args: RequestArgs) -> pb.GenerateRequest:
    """Raises BadRequest for what the wire cannot say; the router checks the rest."""
    chat, token_ids, mode = args.get("chat"), args.get("token_ids"), args.get("mode")
    if sum(prompt is not None for prompt in (text, chat, token_ids)) != 1:
        raise BadRequest("prompt", "give exactly one of text, chat and token_ids")
    if mode is not None and mode not in MODES:
        raise BadRequest("mode", f"{mode!r} is unknown; use {', '.join(MODES)}")
    request = pb.GenerateRequest(
        request_id=args.get("request_id"),
        max_tokens=args.get("max_tokens"),
        stop_token_ids=args.get("stop_token_ids", ()),
        ignore_eos=args.get("ignore_eos"),
        mode=None if mode is None else MODES[mode],
        draft_tokens=args.get("draft_tokens"),
    )
    if text is not None:
        request.text = text
    if chat is not None:
        request.chat.SetInParent()
        request.chat.messages.extend(pb.ChatMessage(**turn) for turn in chat)
    if token_ids is not None:
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(token_ids)
    return request
