"""Both clients against the real router: the same answers, prompt cancellation, typed errors."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from domino_client import (
    AsyncClient,
    BadRequest,
    Client,
    Completion,
    DeadlineExceeded,
    InternalError,
    PeerUnavailable,
    RequestArgs,
    Sampling,
)
from domino_client.parse import Assembly
from domino_serve.v1 import generate_pb2, sampling_pb2
from domino_serve.v1 import speculation_pb2 as spec
from tests.router.fake_services import HANG
from tests.router.services import Services


def over_aio(services: Services, use: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    """What `use` returns, given an async client of the router."""

    async def run() -> Any:
        async with AsyncClient(services.address, timeout_s=30) as client:
            return await use(client)

    return asyncio.run(run())


def await_abort(services: Services) -> None:
    services.await_abort(services.verify.requests.get(timeout=60).request_id)


def test_sync_and_async_answer_alike(services: Services) -> None:
    """Prevents two clients that drift apart."""

    async def use(client: AsyncClient) -> tuple[list[str], Completion, Completion]:
        stream = client.stream(token_ids=[9], max_tokens=7, request_id="one")
        texts = [chunk.text async for chunk in stream]
        whole = await client.generate(token_ids=[9], max_tokens=7, request_id="one")
        return texts, stream.completion, whole

    texts, streamed, whole = over_aio(services, use)
    expected = services.client.generate(token_ids=[9], max_tokens=7, request_id="one")
    assert streamed == whole == expected
    assert "".join(texts) == expected.text
    assert over_aio(services, lambda client: client.model_info()) == services.client.model_info()


def test_a_completion_carries_the_statistics(services: Services) -> None:
    """Prevents acceptance figures that mean something else than design and papers say."""
    done = services.client.generate(token_ids=[9], max_tokens=10, mode="domino", draft_tokens=5)
    assert (done.speculation.mode, done.speculation.width) == ("domino", 6)
    assert done.speculation.acceptance_length == 2.5  # 10 tokens in 4 steps
    assert done.speculation.acceptance_rate == 0.3  # 6 of 20 proposals
    assert done.speculation.accepted_by_position == (4, 2)
    assert done.timings.total_ns == 7


@pytest.mark.parametrize("stack", ["sync", "aio"])
def test_leaving_the_loop_cancels(services: Services, stack: str) -> None:
    """Prevents servers that go on generating for readers who have gone."""

    async def use(client: AsyncClient) -> None:
        async with client.stream(token_ids=[HANG]) as stream:
            async for _ in stream:
                break
        await asyncio.to_thread(await_abort, services)

    if stack == "aio":
        over_aio(services, use)
        return
    for _ in services.client.stream(token_ids=[HANG]):
        break
    await_abort(services)


@pytest.mark.parametrize("stack", ["sync", "aio"])
def test_a_deadline_ends_the_request_everywhere(services: Services, stack: str) -> None:
    """Prevents waiting for ever, and work that goes on after nobody waits."""

    def exceed(deadline: float) -> None:
        with pytest.raises(DeadlineExceeded):
            if stack == "sync":
                services.client.generate(token_ids=[HANG], timeout_s=deadline)
            else:
                over_aio(services, lambda c: c.generate(token_ids=[HANG], timeout_s=deadline))

    deadline = 0.3
    exceed(deadline)
    while services.verify.requests.empty():  # it was over before the request got there
        deadline *= 2
        exceed(deadline)
    await_abort(services)


def test_abort_over_aio(services: Services) -> None:
    """Prevents an async Abort that does not reach the running request."""

    async def use(client: AsyncClient) -> str:
        stream = client.stream(token_ids=[HANG], request_id="mine")
        chunks = aiter(stream)
        await anext(chunks)
        assert await client.abort("mine")
        assert [chunk async for chunk in chunks] == []
        return stream.completion.finish_reason

    assert over_aio(services, use) == "abort"


def test_a_completion_is_there_only_at_the_end(services: Services) -> None:
    """Prevents half a text from being taken for the whole."""
    with services.client.stream(token_ids=[9], max_tokens=9) as stream:
        next(iter(stream))
        with pytest.raises(InternalError, match="without a completion"):
            _ = stream.completion


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({}, "prompt"),
        ({"text": "a", "token_ids": [1]}, "prompt"),
        ({"text": "a", "mode": "fast"}, "mode"),
        ({"text": "\ud800"}, "text"),
        ({"chat": [{"role": "user", "words": "a"}]}, "chat"),
        ({"token_ids": [2**63]}, "token_ids"),
        ({"text": "a", "temprature": 1}, "temprature"),
        ({"text": "a", "temperature": "hot"}, "temperature"),
        ({"text": "a", "temperature": 10**400}, "temperature"),
        ({"text": "a", "seed": 2**63}, "seed"),
        ({"text": "a", "seed": -(2**63) - 1}, "seed"),
        ({"text": "a", "top_k": 1.5}, "top_k"),
        ({"text": "a", "max_tokens": math.nan}, "max_tokens"),
        ({"text": "a", "min_tokens": math.inf}, "min_tokens"),
        ({"text": "a", "draft_tokens": "7"}, "draft_tokens"),
        ({"text": "a", "stop": [7]}, "stop"),
        ({"text": "a", "stop": ["\ud800"]}, "stop"),
        ({"text": "a", "stop_token_ids": ["b"]}, "stop_token_ids"),
        ({"text": "a", "timeout_s": 0}, "timeout_s"),
        ({"text": "a", "timeout_s": -1.0}, "timeout_s"),
        ({"text": "a", "timeout_s": math.nan}, "timeout_s"),
        ({"text": "a", "timeout_s": math.inf}, "timeout_s"),
        ({"text": "a", "timeout_s": 1e10}, "timeout_s"),
        ({"text": "a", "timeout_s": "9"}, "timeout_s"),
    ],
    ids=str,
)
def test_what_the_wire_cannot_say_is_refused_at_home(args: dict[str, Any], field: str) -> None:
    """Prevents a value that silently replaces or loses another, and errors without a field."""
    with Client("127.0.0.1:1") as client, pytest.raises(BadRequest) as caught:
        client.generate(**args)
    assert caught.value.field == field


def test_an_answers_unknown_end_is_an_error_with_a_remedy() -> None:
    """Prevents a KeyError in a client that is older than its router."""
    end = generate_pb2.GenerateComplete(finish_reason=spec.FinishReason.ValueType(77))
    with pytest.raises(InternalError, match=r"finish reason 77 is unknown.*update"):
        Assembly().add(generate_pb2.GenerateResponse(complete=end))


def test_every_argument_reaches_the_router(services: Services) -> None:
    """Prevents arguments that one of the clients forgets."""
    args: RequestArgs = {
        "request_id": "mine",
        "token_ids": [60],
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": "ab",
        "stop_token_ids": [70],
        "ignore_eos": True,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 8,
        "mode": "dflash",
        "draft_tokens": 4,
    }
    sync = services.client.generate(**args)
    assert over_aio(services, lambda client: client.generate(**args)) == sync
    first, second = (services.verify.requests.get(timeout=60) for _ in range(2))
    first.request_id = second.request_id = ""
    assert first == second
    assert (first.max_tokens, first.min_tokens, list(first.stop_token_ids)) == (9, 2, [70])
    assert first.sampling == sampling_pb2.Sampling(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=8
    )
    assert (first.draft.mode, first.draft.draft_tokens) == (spec.MODE_DFLASH, 4)
    assert sync.sampling == Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=8)


@pytest.mark.parametrize("stack", ["sync", "aio"])
def test_no_router_is_one_typed_error(stack: str) -> None:
    """Prevents raw gRPC errors in applications."""

    async def use() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            await client.generate("a")

    with pytest.raises(PeerUnavailable) as caught:
        if stack == "sync":
            Client("127.0.0.1:1").generate("a")
        else:
            asyncio.run(use())
    assert caught.value.peer == "router"
