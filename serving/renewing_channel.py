"""A grpc.aio channel whose certificates may be renewed: later calls use a new connection."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import grpc

_OLD_CALLS_S: Final = 3600.0  # what calls of the old connection get


class RenewingChannel(grpc.aio.Channel):
    """connect: makes a channel. version: an object that is another one after a renewal."""

    def __init__(
        self, connect: Callable[[], grpc.aio.Channel], version: Callable[[], object]
    ) -> None:
        self._connect, self._version = connect, version
        self._seen, self._channel = version(), connect()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def _now(self) -> grpc.aio.Channel:
        if self._closed:  # what gRPC does with a callable that is made of one is not defined
            raise grpc.aio.UsageError("Channel is closed.")
        if (seen := self._version()) is not self._seen:
            closing = asyncio.ensure_future(self._channel.close(_OLD_CALLS_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._seen, self._channel = seen, self._connect()
        return self._channel

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._callable("unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._callable("unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._callable("stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._callable("stream_stream", args, kwargs)

    def _callable(self, kind: str, args: Any, kwargs: Any) -> Any:
        """Stubs keep it, so it looks up the channel at each call."""

        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            return getattr(self._now(), kind)(*args, **kwargs)(*call_args, **call_kwargs)

        return call

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._now().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._now().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for closing in self._closing:
            closing.cancel()
        await self._channel.close(grace)

    async def __aenter__(self) -> "RenewingChannel":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
