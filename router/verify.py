"""The verify service as the router sees it: what it has loaded, and runs of requests."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from domino_serve.v1 import verify_pb2 as pb
from domino_serve.v1.verify_pb2_grpc import VerifyServiceStub
from serving.errors import StartError, from_rpc_error

_log = logging.getLogger(__name__)

_ABORT_TIMEOUT_S = 5.0
_RETRY_S = 0.5
_PROGRESS_S = 5.0

Run = grpc.aio.UnaryStreamCall[pb.VerifyServiceGenerateRequest, pb.VerifyServiceGenerateResponse]


class VerifyClient:
    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self._address = address
        self._stub = VerifyServiceStub(channel)

    async def target(self, timeout_s: float) -> pb.GetTargetResponse:
        """Waits for the service, telling about it; StartError after timeout_s."""
        end, tell_at = time.monotonic() + timeout_s, 0.0
        while True:
            left = max(end - time.monotonic(), _RETRY_S)
            try:
                request = pb.GetTargetRequest()
                return await self._stub.GetTarget(request, timeout=min(left, _PROGRESS_S))
            except grpc.aio.AioRpcError as error:
                reason = from_rpc_error(error, "verify")
            now = time.monotonic()
            if now >= end:
                raise StartError(
                    f"the verify service at {self._address} did not answer within {timeout_s:g} s "
                    f"({reason}); start it first or raise --startup-timeout-s"
                )
            if now >= tell_at:
                tell_at = now + _PROGRESS_S
                _log.info("waiting for the verify service at %s: %s", self._address, reason)
            await asyncio.sleep(min(_RETRY_S, end - now))

    @asynccontextmanager
    async def run(self, request: pb.VerifyServiceGenerateRequest) -> AsyncIterator[Run]:
        """A running request; leaving before its last event, by exception or not, ends it there."""
        call = self._stub.Generate(request)
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
