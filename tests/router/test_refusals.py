"""Bad requests through the real router: refused by field, value and limit; others go on."""

import re

import grpc
import pytest

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1.generate_pb2_grpc import GenerateServiceStub
from serving.channel import channel
from serving.errors import BadRequest, from_rpc_error
from tests.router.fake_services import HANG, VOCAB_SIZE
from tests.router.services import Services

LAST_ID = VOCAB_SIZE - 1


def ids(*values: int) -> pb.TokenIds:
    return pb.TokenIds(ids=values)


def user(content: str) -> pb.ChatMessage:
    return pb.ChatMessage(role="user", content=content)


def request(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=ids(9), **fields)  # type: ignore[arg-type]


REFUSED = {
    "no prompt": (pb.GenerateRequest(), "prompt", "set one of text, chat and token_ids"),
    "empty text": (pb.GenerateRequest(text=""), "prompt", "text is empty"),
    "empty chat": (pb.GenerateRequest(chat=pb.ChatPrompt()), "prompt", "chat is empty"),
    "no ids": (pb.GenerateRequest(token_ids=ids()), "prompt", "is empty"),
    "prompt fills the context": (
        pb.GenerateRequest(token_ids=ids(*[9] * 64)), "prompt", "64 tokens, but the context of 64"
    ),
    "prompt beyond the context": (
        pb.GenerateRequest(text="fox " * 400), "prompt", "[0-9]+ tokens, but the context of 64"
    ),
    "5 MB of text": (
        pb.GenerateRequest(text="x" * 5_000_000), "text", "5000000 bytes of text, 1048576 at most"
    ),
    "5 MB of chat": (
        pb.GenerateRequest(chat=pb.ChatPrompt(messages=[user("東" * 1_000_000)] * 2)),
        "chat",
        "6000000 bytes of text, 1048576 at most",
    ),
    "5 MB of ids": (
        pb.GenerateRequest(token_ids=ids(*[9] * 5_000_000)), "prompt", "5000000 tokens"
    ),
    "id too large": (
        pb.GenerateRequest(token_ids=ids(9, VOCAB_SIZE)),
        "token_ids",
        rf"\[1\] is {VOCAB_SIZE}, outside the vocabulary 0\.\.{LAST_ID}",
    ),
    "negative id": (pb.GenerateRequest(token_ids=ids(-1)), "token_ids", r"\[0\] is -1"),
    "unknown role": (
        pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="tool", content="x")])),
        "chat",
        "role 'tool' is unknown",
    ),
    "refused by the template": (
        pb.GenerateRequest(
            chat=pb.ChatPrompt(messages=[user("x"), pb.ChatMessage(role="system", content="y")])
        ),
        "chat",
        "system must come first",
    ),
    "max_tokens 0": (request(max_tokens=0), "max_tokens", "0; must be at least 1"),
    "negative max_tokens": (request(max_tokens=-3), "max_tokens", "-3; must be at least 1"),
    "unknown mode": (request(mode=9), "mode", "mode 9 is not served here.*ar, dflash, domino"),
    "too many draft tokens": (
        request(mode=3, draft_tokens=8), "draft_tokens", r"8; must be in 0\.\.7 in mode domino"
    ),
    "negative draft tokens": (request(draft_tokens=-1), "draft_tokens", r"-1; must be in 0\.\.7"),
    "draft tokens without a draft": (
        request(mode=1, draft_tokens=2), "draft_tokens", r"2; must be in 0\.\.0 in mode ar"
    ),
    "stop id out of range": (
        request(stop_token_ids=[VOCAB_SIZE]), "stop_token_ids", rf"\[0\] is {VOCAB_SIZE}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_requests_are_refused_by_name(services: Services, name: str) -> None:
    """Prevents bad input from reaching the engine, and refusals that leave the user guessing."""
    bad, field, message = REFUSED[name]
    with channel(services.address) as calls, pytest.raises(grpc.RpcError) as caught:
        list(GenerateServiceStub(calls).Generate(bad, timeout=30))
    error = from_rpc_error(caught.value)
    assert isinstance(error, BadRequest)
    assert error.field == field
    assert re.search(message, str(error)), str(error)
    assert services.verify.requests.empty()
    assert services.client.generate(token_ids=[9], max_tokens=1).token_ids == (10,)


def test_a_running_requests_id_cannot_be_taken(services: Services) -> None:
    """Prevents an Abort that ends somebody else's request."""
    first = iter(services.client.stream(token_ids=[HANG], request_id="mine"))
    next(first)
    with pytest.raises(BadRequest, match="request_id: 'mine' is running already"):
        services.client.generate(token_ids=[9], request_id="mine")
