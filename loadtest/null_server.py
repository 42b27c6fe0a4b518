"""A router that computes nothing: what the load generator, gRPC and this machine can do at most.

`python -m loadtest.null_server`: the same contract, every token is 1, chunks at a given pace.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.generate_pb2_grpc import (
    GenerateServiceServicer,
    add_GenerateServiceServicer_to_server,
)
from serving.aio_server import AioServer
from serving.options import OptionError, field, parse
from serving.process import run

SERVICE = pb.DESCRIPTOR.services_by_name["GenerateService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class NullConfig:
    """Options of the null server."""

    host: str = field("127.0.0.1", help="address to listen on")
    port: int = field(0, help="port to listen on; 0 takes a free one")
    tokens_per_chunk: int = field(1, help="tokens of a chunk")
    chunk_ms: float = field(0.0, help="time between chunks of a request")

    def __post_init__(self) -> None:
        if self.tokens_per_chunk < 1:
            raise OptionError("tokens_per_chunk", self.tokens_per_chunk, "must be at least 1")
        if not self.chunk_ms >= 0:
            raise OptionError("chunk_ms", self.chunk_ms, "must not be negative")


class NullServicer(GenerateServiceServicer):
    """Answers with as many tokens as are asked for."""

    def __init__(self, config: NullConfig) -> None:
        self._config = config

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        size, left, steps = self._config.tokens_per_chunk, request.max_tokens or 1, 0
        while left > 0:
            if self._config.chunk_ms:
                await asyncio.sleep(self._config.chunk_ms / 1e3)
            count = min(size, left)
            yield pb.GenerateResponse(
                chunk=pb.GenerateChunk(text=" x" * count, token_ids=[1] * count)
            )
            left, steps = left - count, steps + 1
        yield pb.GenerateResponse(complete=complete(request, steps))

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        return pb.AbortResponse(found=False)

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        return pb.GetModelInfoResponse(
            target="null", vocab_size=1000, max_context=1 << 20, modes=[spec.MODE_AR]
        )


def complete(request: pb.GenerateRequest, steps: int) -> pb.GenerateComplete:
    usage = spec.Usage(prompt_tokens=1, completion_tokens=request.max_tokens or 1)
    stats = spec.SpeculationStats(
        mode=spec.MODE_AR, width=1, verify_steps=steps, step_tokens=usage.completion_tokens
    )
    return pb.GenerateComplete(
        request_id=request.request_id,
        finish_reason=spec.FINISH_REASON_LENGTH,
        usage=usage,
        speculation=stats,
    )


async def serve(config: NullConfig) -> int:
    server = AioServer("null", host=config.host, port=config.port, grace_s=1.0)
    add_GenerateServiceServicer_to_server(NullServicer(config), server.grpc)
    await server.start(SERVICE)
    await server.ready()
    return await server.wait()


def main() -> int:
    config = parse(
        NullConfig, prog="python -m loadtest.null_server", description="Answers without computing."
    )
    return run(lambda: asyncio.run(serve(config)), "null")


if __name__ == "__main__":
    sys.exit(main())
