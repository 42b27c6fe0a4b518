"""The asyncio client; make and use it within one event loop."""

from collections.abc import AsyncIterator
from typing import Self, Unpack

import grpc

from domino_client.access import token_metadata
from domino_client.completion import Chunk, Completion, ModelInfo
from domino_client.parse import Assembly, model_info
from domino_client.request import RequestArgs, build_request, deadline
from domino_serve.v1 import generate_pb2 as pb
from domino_serve.v1.generate_pb2_grpc import GenerateServiceStub
from serving.channel import aio_channel
from serving.errors import from_rpc_error
from serving.tls import Tls

_UNARY_TIMEOUT_S = 10.0


class AsyncStream:
    """Chunks as they are committed, once; leaving the loop or the `async with` block cancels."""

    def __init__(
        self, call: "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"
    ) -> None:
        self._call = call
        self._assembly = Assembly()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            async for response in self._call:
                if chunk := self._assembly.add(response):
                    yield chunk
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "router") from error
        finally:
            self.cancel()

    @property
    def completion(self) -> Completion:
        """The whole; only after the last chunk."""
        return self._assembly.finished()

    def cancel(self) -> None:
        """Ends the request; nothing happens when it has ended."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


class AsyncClient:
    """Talks to the router at `address`, host:port or unix:/path.

    timeout_s: seconds that a request may take where it names none; None: for ever. tls: for routers
    with --tls-cert. token: for routers with --callers; only by TLS, or to this machine. Methods
    raise serving.errors.ServingError subclasses.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float | None = None,
        tls: Tls | None = None,
        token: str | None = None,
    ) -> None:
        self._metadata = token_metadata(address, tls, token)
        self._channel = aio_channel(address, tls)
        self._stub = GenerateServiceStub(self._channel)
        self._timeout_s = timeout_s

    def stream(self, text: str | None = None, **args: Unpack[RequestArgs]) -> AsyncStream:
        """Starts a request; BadRequest, and nothing sent, for what the wire cannot say."""
        request = build_request(text, args)
        timeout_s = deadline(args, self._timeout_s)
        return AsyncStream(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    async def generate(self, text: str | None = None, **args: Unpack[RequestArgs]) -> Completion:
        """The whole answer, once it is there."""
        async with self.stream(text, **args) as stream:
            async for _ in stream:
                pass
            return stream.completion

    async def abort(self, request_id: str) -> bool:
        """Ends a running request, whose stream completes with "abort"; whether there was one."""
        try:
            request = pb.AbortRequest(request_id=request_id)
            return (
                await self._stub.Abort(request, timeout=_UNARY_TIMEOUT_S, metadata=self._metadata)
            ).found
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "router") from error

    async def model_info(self) -> ModelInfo:
        """What the router serves, its limits and defaults."""
        try:
            request = pb.GetModelInfoRequest()
            return model_info(
                await self._stub.GetModelInfo(
                    request, timeout=_UNARY_TIMEOUT_S, metadata=self._metadata
                )
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "router") from error

    async def close(self) -> None:
        """Ends what still runs."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
