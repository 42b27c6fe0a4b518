"""Places on the draft service; without one a request runs plain: slower, the same output."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc

from domino_serve.v1 import draft_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.draft_pb2_grpc import DraftServiceStub
from router.admission import Work
from serving.errors import from_rpc_error

_log = logging.getLogger(__name__)


class DraftSeats:
    """`missed` counts requests that wanted a seat and run plain."""

    def __init__(self, address: str, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._address = address
        self._stub = DraftServiceStub(channel)
        self._timeout_s = timeout_s
        self.missed = 0
        self._releases: set[asyncio.Task[None]] = set()  # tasks live as long as somebody has them

    @asynccontextmanager
    async def hold(self, work: Work) -> AsyncIterator[verify_pb2.DraftSeat | None]:
        """A reserved seat, or None when the request is to run plain.

        Given back at the end, without waiting for it: a request that verify refuses, or that ends
        before its first drafted step, leaves it unopened. For an opened one nothing happens.
        """
        seat = await self._reserve(work)
        try:
            yield seat
        finally:
            if seat:
                task = asyncio.create_task(self._release(seat.ticket))
                self._releases.add(task)
                task.add_done_callback(self._releases.discard)

    async def _reserve(self, work: Work) -> verify_pb2.DraftSeat | None:
        if work.mode == spec.MODE_AR:
            return None
        request = draft_pb2.ReserveSeatRequest(
            mode=work.mode, max_positions=len(work.prompt_ids) + work.max_tokens
        )
        try:
            reserved = await self._stub.ReserveSeat(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            self.missed += 1
            reason = from_rpc_error(error, "draft")
            _log.warning("request %s runs plain: %s", work.request_id, reason)
            return None
        return verify_pb2.DraftSeat(
            address=self._address,
            ticket=reserved.ticket,
            mode=work.mode,
            draft_tokens=work.draft_tokens,
        )

    async def _release(self, ticket: str) -> None:
        with suppress(grpc.aio.AioRpcError):  # then it expires
            request = draft_pb2.ReleaseSeatRequest(ticket=ticket)
            await self._stub.ReleaseSeat(request, timeout=self._timeout_s)
