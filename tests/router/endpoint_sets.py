"""Sets of endpoints as a source yields them, for tests of discovery."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from router.endpoint import Endpoint

Sets = AsyncIterator[tuple[Endpoint, ...]]


class Told:
    """A source that yields what it is told."""

    def __init__(self) -> None:
        self.sets: asyncio.Queue[tuple[Endpoint, ...]] = asyncio.Queue()

    async def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        while True:
            yield await self.sets.get()


def addresses(found: tuple[Endpoint, ...]) -> list[str]:
    return [one.address for one in found]


def follow(talk: Callable[[Sets], Awaitable[None]], source: Any) -> None:
    """Runs `talk` with the source's sets, and closes them as the router does."""

    async def run() -> None:
        sets = source.watch()
        try:
            await talk(sets)
        finally:
            await sets.aclose()

    asyncio.run(run())
