"""Many streams at once through a router or straight from verify; what each chunk took."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from benchmarks.null_verify import TOKENS, age_us
from domino_client import AsyncClient, ServingError
from domino_serve.v1 import verify_pb2 as pb
from domino_serve.v1.verify_pb2_grpc import VerifyServiceStub
from serving.channel import aio_channel

PROMPT = (5, 6, 7, 8)


@dataclass(slots=True, kw_only=True)
class Wave:
    """What `streams` at once gave. first_us: delay of each stream's first chunk, later_us: of the
    others, from the verify service's sending to the client's reading."""

    streams: int
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    first_us: list[int] = field(default_factory=list)
    later_us: list[int] = field(default_factory=list)

    @property
    def chunks(self) -> int:
        return len(self.first_us) + len(self.later_us)

    def add(self, ids: Sequence[int], first_id: int, *, is_first: bool) -> None:
        age = age_us(ids, first_id)
        (self.first_us if is_first else self.later_us).append(age)
        self.tokens += len(ids)


Chunks = Callable[[int, int], AsyncIterator[Sequence[int]]]


async def run_wave(chunks: Chunks, streams: int, length: int, first_id: int) -> Wave:
    """`streams` requests of `length` chunks each, all at once. Failures are counted, not raised."""
    wave = Wave(streams=streams)

    async def one(number: int) -> None:
        read = 0
        try:
            async for ids in chunks(number, length * TOKENS):
                wave.add(ids, first_id, is_first=read == 0)
                read += 1
        except (ServingError, grpc.aio.AioRpcError) as error:
            wave.failures.append(str(error))
            return
        if read != length:
            wave.failures.append(f"stream {number}: {read} of {length} chunks")

    await asyncio.gather(*(one(number) for number in range(streams)))
    return wave


@asynccontextmanager
async def through_router(address: str) -> AsyncIterator[Chunks]:
    async with AsyncClient(address) as client:

        async def chunks(number: int, tokens: int) -> AsyncIterator[Sequence[int]]:
            async with client.stream(token_ids=PROMPT, max_tokens=tokens) as stream:
                async for chunk in stream:
                    if chunk.token_ids:
                        yield chunk.token_ids

        yield chunks


@asynccontextmanager
async def direct(address: str) -> AsyncIterator[Chunks]:
    """The verify service itself: what the router is compared with."""
    async with aio_channel(address) as channel:
        stub = VerifyServiceStub(channel)

        async def chunks(number: int, tokens: int) -> AsyncIterator[Sequence[int]]:
            request = pb.VerifyServiceGenerateRequest(
                request_id=f"direct-{number}", prompt_ids=PROMPT, max_tokens=tokens
            )
            async for event in stub.Generate(request):
                if event.HasField("chunk"):
                    yield event.chunk.token_ids

        yield chunks
