"""A verify service that computes nothing, to measure the router by itself.

`python -m benchmarks.null_verify`: chunks at a pace, whose ids say when each was sent.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1 import verify_pb2 as pb
from domino_serve.v1.verify_pb2_grpc import (
    VerifyServiceServicer,
    add_VerifyServiceServicer_to_server,
)
from serving.aio_server import AioServer
from serving.options import field, parse
from serving.process import run

SERVICE = pb.DESCRIPTOR.services_by_name["VerifyService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]
TOKENS = 7  # of a chunk, as many as Domino's acceptance length at width 16
BITS = 6  # of the sending time in each id
SPAN_US = 1 << (TOKENS * BITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class NullVerifyConfig:
    """Options of the null verify service."""

    host: str = field("127.0.0.1", help="address to listen on")
    port: int = field(0, help="port to listen on; 0 takes a free one")
    vocab_size: int = field(49152, help="vocabulary it claims")
    max_context: int = field(8192, help="context it claims")
    first_id: int = field(1000, help="its answers are of this id and the 63 above")
    chunk_ms: float = field(500.0, help="time between chunks of a request; the first comes at once")


def stamp(first_id: int) -> list[int]:
    """The monotonic clock's microseconds as ids, in base 64."""
    now = time.monotonic_ns() // 1000
    return [first_id + (now >> BITS * place) % (1 << BITS) for place in range(TOKENS)]


def age_us(ids: Sequence[int], first_id: int) -> int:
    """Microseconds since `stamp` made the ids, on the same machine."""
    sent = sum((token - first_id) << BITS * place for place, token in enumerate(ids))
    return (time.monotonic_ns() // 1000 - sent) % SPAN_US


class NullVerifyServicer(VerifyServiceServicer):
    """Every request gets all the tokens it asks for, in whole chunks."""

    def __init__(self, config: NullVerifyConfig) -> None:
        self._config = config

    async def Generate(
        self, request: pb.VerifyServiceGenerateRequest, context: Context
    ) -> AsyncIterator[pb.VerifyServiceGenerateResponse]:
        steps = -(-request.max_tokens // TOKENS)
        for step in range(steps):
            if step:
                await asyncio.sleep(self._config.chunk_ms / 1e3)
            chunk = pb.VerifyChunk(token_ids=stamp(self._config.first_id))
            yield pb.VerifyServiceGenerateResponse(chunk=chunk)
        yield pb.VerifyServiceGenerateResponse(complete=complete(request, steps))

    async def Abort(
        self, request: pb.VerifyServiceAbortRequest, context: Context
    ) -> pb.VerifyServiceAbortResponse:
        return pb.VerifyServiceAbortResponse(found=False)

    async def GetTarget(
        self, request: pb.GetTargetRequest, context: Context
    ) -> pb.GetTargetResponse:
        target = pb.TargetFingerprint(name="null", vocab_size=self._config.vocab_size)
        return pb.GetTargetResponse(
            target=target, max_context=self._config.max_context, max_sequences=1 << 20
        )

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no target to score with")

    async def ConnectDraft(
        self, request: pb.ConnectDraftRequest, context: Context
    ) -> pb.ConnectDraftResponse:
        return await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no target to draft for")

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        return pb.GetLoadsResponse()

    async def FlushCache(
        self, request: pb.FlushCacheRequest, context: Context
    ) -> pb.FlushCacheResponse:
        return pb.FlushCacheResponse()


def complete(request: pb.VerifyServiceGenerateRequest, steps: int) -> pb.VerifyComplete:
    tokens = steps * TOKENS
    return pb.VerifyComplete(
        finish_reason=spec.FINISH_REASON_LENGTH,
        usage=spec.Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=tokens),
        speculation=spec.SpeculationStats(
            mode=spec.MODE_AR, width=1, verify_steps=steps, step_tokens=tokens
        ),
    )


async def serve(config: NullVerifyConfig) -> int:
    server = AioServer("null-verify", host=config.host, port=config.port, grace_s=1.0)
    add_VerifyServiceServicer_to_server(NullVerifyServicer(config), server.grpc)
    await server.start(SERVICE)
    await server.ready()
    return await server.wait()


def main() -> int:
    config = parse(
        NullVerifyConfig, prog="python -m benchmarks.null_verify", description="Computes nothing."
    )
    return run(lambda: asyncio.run(serve(config)), "null-verify")


if __name__ == "__main__":
    sys.exit(main())
