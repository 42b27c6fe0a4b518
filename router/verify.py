"""A verify service as the router sees it: what it has loaded, and runs of requests."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from domino_serve.v1 import verify_pb2 as pb
from domino_serve.v1.verify_pb2_grpc import VerifyServiceStub
from serving.errors import from_rpc_error
from serving.trace import metadata

_log = logging.getLogger(__name__)

_ABORT_TIMEOUT_S = 5.0

Run = grpc.aio.UnaryStreamCall[pb.VerifyServiceGenerateRequest, pb.VerifyServiceGenerateResponse]


class VerifyClient:
    """Methods raise ServingError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = VerifyServiceStub(channel)

    async def target(self, timeout_s: float) -> pb.GetTargetResponse:
        try:
            return await self._stub.GetTarget(pb.GetTargetRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "verify") from error

    async def connect_draft(self, address: str, timeout_s: float) -> None:
        """Has verify and draft shake hands; raises what they part with."""
        request = pb.ConnectDraftRequest(address=address)
        try:
            await self._stub.ConnectDraft(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "verify") from error

    @asynccontextmanager
    async def run(
        self, request: pb.VerifyServiceGenerateRequest, timeout_s: float | None
    ) -> AsyncIterator[Run]:
        """A running request; leaving before its last event, by exception or not, ends it there."""
        call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata())
        try:
            yield call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "verify") from error
        except BaseException:
            await self._end(call, request.request_id)
            raise
        if not call.done():
            await self._end(call, request.request_id)

    async def abort(self, request_id: str) -> bool:
        """Whether such a request was running."""
        try:
            request = pb.VerifyServiceAbortRequest(request_id=request_id)
            return (await self._stub.Abort(request, timeout=_ABORT_TIMEOUT_S)).found
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "verify") from error

    async def _end(self, call: Run, request_id: str) -> None:
        call.cancel()
        await asyncio.shield(self._give_up(request_id))

    async def _give_up(self, request_id: str) -> None:
        try:
            await self.abort(request_id)
        except Exception as error:
            _log.warning("request %s may still run on verify: %s", request_id, error)
