"""Places on the draft services; without one a request runs plain: slower, the same output."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import grpc

from domino_serve.v1 import draft_pb2, verify_pb2
from domino_serve.v1 import speculation_pb2 as spec
from domino_serve.v1.draft_pb2_grpc import DraftServiceStub
from router.admission import Work
from router.discovery import Discovery
from router.endpoint import Endpoint
from router.metrics import WITHOUT_SEAT
from serving.channel import aio_channel
from serving.errors import BadRequest, Overloaded, ServingError, from_rpc_error

if TYPE_CHECKING:
    from domino_serve.v1.draft_pb2_grpc import DraftServiceAsyncStub

_log = logging.getLogger(__name__)

_AWAY_S: Final = 1.0  # between attempts, so that no request waits for a draft that is away


@dataclass(slots=True, eq=False)
class _Draft:
    """One draft service; `held` are this router's requests that it drafts for."""

    endpoint: Endpoint
    channel: grpc.aio.Channel
    stub: "DraftServiceAsyncStub"  # gRPC aborts the process where one is made of a closed channel
    held: int = 0
    away_until: float = 0.0

    @classmethod
    def at(cls, endpoint: Endpoint) -> Self:
        channel = aio_channel(endpoint.address)
        return cls(endpoint=endpoint, channel=channel, stub=DraftServiceStub(channel))

    @property
    def address(self) -> str:
        return self.endpoint.address

    @property
    def is_away(self) -> bool:
        """Whether it was, a moment ago."""
        return time.monotonic() < self.away_until


class DraftSeats:
    """Seats on whichever draft has one. An async context manager."""

    def __init__(self, discovery: Discovery, timeout_s: float) -> None:
        self._discovery, self._timeout_s = discovery, timeout_s
        self._drafts: dict[str, _Draft] = {}
        self._releases: set[asyncio.Task[None]] = set()  # tasks live as long as somebody has them

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watcher.cancel()
        await asyncio.gather(self._watcher, *self._releases, return_exceptions=True)
        drafts, self._drafts = self._drafts, {}  # they are gone for whoever ends later
        for draft in drafts.values():
            await draft.channel.close()

    def addresses(self) -> tuple[str, ...]:
        """Of every draft there is."""
        return tuple(self._drafts)

    @asynccontextmanager
    async def hold(self, work: Work, near: Endpoint) -> AsyncIterator[verify_pb2.DraftSeat | None]:
        """A seat; without a ticket when the request is to begin plain, None when it stays so.
        near: its verify service.

        Given back at the end, without waiting for it: a request that verify refuses, or that ends
        before its first drafted step, leaves it unopened. For an opened one nothing happens.
        """
        if work.mode == spec.MODE_AR or not self._drafts:
            yield None
            return
        draft, ticket = await self._find(work, near)
        draft.held += 1
        try:
            yield verify_pb2.DraftSeat(
                address=draft.address,
                ticket=ticket,
                mode=work.mode,
                draft_tokens=work.draft_tokens,
            )
        finally:
            draft.held -= 1
            task = asyncio.create_task(self._release(draft, ticket))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _find(self, work: Work, near: Endpoint) -> tuple[_Draft, str]:
        """The nearest draft that has a seat, the least used of equals, and its ticket; one that is
        not away and an empty ticket when none has, in the timeout."""
        end, reason = time.monotonic() + self._timeout_s, "no draft service answers"
        drafts = sorted(self._drafts.values(), key=lambda d: (-near.nearness(d.endpoint), d.held))
        for draft in drafts:
            left_s = end - time.monotonic()
            if left_s <= 0:
                break  # what another draft has used up says nothing of this one
            if draft.is_away or self._is_gone(draft):
                continue
            try:
                return draft, await self._reserve(draft, work, left_s)
            except ServingError as error:
                reason = f"{draft.address}: {error}"
                if not isinstance(error, Overloaded | BadRequest):
                    draft.away_until = time.monotonic() + _AWAY_S
        WITHOUT_SEAT.inc()
        _log.warning("request %s runs plain: %s", work.request_id, reason)
        return min(drafts, key=lambda draft: (self._is_gone(draft), draft.is_away)), ""

    async def _reserve(self, draft: _Draft, work: Work, left_s: float) -> str:
        request = draft_pb2.ReserveSeatRequest(
            mode=work.mode, max_positions=len(work.prompt_ids) + work.max_tokens
        )
        draft.held += 1  # while it is asked, so that not all ask the same one
        try:
            reserved = await draft.stub.ReserveSeat(request, timeout=left_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "draft") from error
        finally:
            draft.held -= 1
        return reserved.ticket

    async def _release(self, draft: _Draft, ticket: str) -> None:
        if ticket and not self._is_gone(draft):
            with suppress(grpc.aio.AioRpcError):  # then it expires
                request = draft_pb2.ReleaseSeatRequest(ticket=ticket)
                await draft.stub.ReleaseSeat(request, timeout=self._timeout_s)
        await self._close_if_gone(draft)

    async def _watch(self) -> None:
        try:
            async for endpoints in self._discovery.watch():
                await self._change({endpoint.address: endpoint for endpoint in endpoints})
        except Exception:
            _log.exception("discovery of draft services ended; the last ones stay")

    async def _change(self, endpoints: Mapping[str, Endpoint]) -> None:
        for address in endpoints.keys() - self._drafts.keys():
            self._drafts[address] = _Draft.at(endpoints[address])
        for address in self._drafts.keys() - endpoints.keys():
            await self._close_if_gone(self._drafts.pop(address))

    def _is_gone(self, draft: _Draft) -> bool:
        """Whether discovery has left it out meanwhile; its channel may be closed."""
        return self._drafts.get(draft.address) is not draft

    async def _close_if_gone(self, draft: _Draft) -> None:
        if not draft.held and self._is_gone(draft):
            await draft.channel.close()
