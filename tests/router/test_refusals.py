"""Bad requests through the real router: refused by field, value and limit; others go on."""

import math
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
NAN, INF = math.nan, math.inf


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
    "many turns": (
        pb.GenerateRequest(chat=pb.ChatPrompt(messages=[user("")] * 4097)),
        "chat",
        "4097 messages, 4096 at most",
    ),
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
    "cold temperature": (request(temperature=-1e-9), "temperature", "must be from 0"),
    "hot temperature": (request(temperature=100.001), "temperature", "100.001; .* to 100"),
    "temperature nan": (request(temperature=NAN), "temperature", "nan; must be from 0"),
    "temperature inf": (request(temperature=INF), "temperature", "inf; must be from 0"),
    "temperature -inf": (request(temperature=-INF), "temperature", "-inf; must be from 0"),
    "negative top_k": (request(top_k=-1), "top_k", "-1; must be at least 0, which keeps all"),
    "top_p 0": (request(top_p=0), "top_p", r"0\.0; must be above 0 and at most 1"),
    "top_p above 1": (request(top_p=1.0000001), "top_p", r"1\.0000001; must be above 0"),
    "top_p nan": (request(top_p=NAN), "top_p", "nan; must be above 0"),
    "top_p inf": (request(top_p=INF), "top_p", "inf; must be above 0"),
    "negative min_p": (request(min_p=-0.01), "min_p", r"-0\.01; must be from 0 to 1"),
    "min_p above 1": (request(min_p=1.01), "min_p", r"1\.01; must be from 0 to 1"),
    "min_p nan": (request(min_p=NAN), "min_p", "nan; must be from 0 to 1"),
    "min_p -inf": (request(min_p=-INF), "min_p", "-inf; must be from 0 to 1"),
    "negative seed": (request(seed=-1), "seed", "-1; must be at least 0"),
    "negative min_tokens": (request(min_tokens=-1), "min_tokens", r"-1; must be in 0\.\.63"),
    "min_tokens above max_tokens": (
        request(max_tokens=5, min_tokens=6), "min_tokens", r"6; must be in 0\.\.5"
    ),
    "min_tokens beyond the context": (
        request(max_tokens=500, min_tokens=64), "min_tokens", r"64; must be in 0\.\.63"
    ),
    "17 stop strings": (request(stop=["x"] * 17), "stop", "17 strings, 16 at most"),
    "10,000 stop strings": (request(stop=["x"] * 10_000), "stop", "10000 strings, 16 at most"),
    "empty stop string": (request(stop=["x", ""]), "stop", r"\[1\] has 0 characters, 1 to 256"),
    "long stop string": (request(stop=["東" * 257]), "stop", r"\[0\] has 257 characters, 1 to 256"),
    "stop string without text": (request(stop=["a\ufffd"]), "stop", r"\[0\] contains U\+FFFD"),
    "1025 stop ids": (
        request(stop_token_ids=[9] * 1025), "stop_token_ids", "1025 ids, 1024 at most"
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


SERVED = {
    "longest prompt": pb.GenerateRequest(token_ids=ids(*[9] * 63)),
    "first and last id": pb.GenerateRequest(token_ids=ids(0, LAST_ID)),
    "max_tokens 1": request(max_tokens=1),
    "max_tokens beyond the context": request(max_tokens=2**63 - 1),
    "min_tokens 0": request(max_tokens=5, min_tokens=0),
    "min_tokens as many as max_tokens": request(max_tokens=5, min_tokens=5),
    "no draft tokens": request(mode=3, draft_tokens=0),
    "most draft tokens": request(mode=3, draft_tokens=7),
    "temperature 0": request(temperature=0),
    "temperature 100": request(temperature=100),
    "top_k 0": request(temperature=1, top_k=0),
    "top_k 2^63 - 1": request(temperature=1, top_k=2**63 - 1),
    "least top_p": request(temperature=1, top_p=5e-324),
    "top_p 1": request(temperature=1, top_p=1),
    "min_p 0": request(temperature=1, min_p=0),
    "min_p 1": request(temperature=1, min_p=1),
    "seed 0": request(temperature=1, seed=0),
    "seed 2^63 - 1": request(temperature=1, seed=2**63 - 1),
    "16 stop strings of 256": request(stop=["東" * 256] * 16),
    "1024 stop ids": request(stop_token_ids=[0, LAST_ID] * 512),
}


@pytest.mark.parametrize("name", SERVED)
def test_limits_themselves_are_served(services: Services, name: str) -> None:
    """Prevents limits that are off by one, and documented values that nobody can use."""
    with channel(services.address) as calls:
        *_, last = GenerateServiceStub(calls).Generate(SERVED[name], timeout=30)
    assert last.complete.usage.completion_tokens >= 1


def test_text_that_is_no_utf8_is_refused(services: Services) -> None:
    """Prevents INTERNAL for bytes that only a client of its own making can send."""
    text_field = b"\x12\x02\xff\xfe"
    with channel(services.address) as calls, pytest.raises(grpc.RpcError) as caught:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = calls.unary_stream(
            "/domino_serve.v1.GenerateService/Generate"
        )
        list(call(text_field, timeout=30))
    error = from_rpc_error(caught.value)
    assert isinstance(error, BadRequest)
    assert "valid UTF-8" in str(error)
    assert services.client.generate(token_ids=[9], max_tokens=1).token_ids == (10,)


def test_a_running_requests_id_cannot_be_taken(services: Services) -> None:
    """Prevents an Abort that ends somebody else's request."""
    first = iter(services.client.stream(token_ids=[HANG], request_id="mine"))
    next(first)
    with pytest.raises(BadRequest, match="request_id: 'mine' is running already"):
        services.client.generate(token_ids=[9], request_id="mine")
