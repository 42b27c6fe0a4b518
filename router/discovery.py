"""Where replicas of a service are: an option's text in, sets of endpoints out, as they change."""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from router.endpoint import Endpoint
from serving.options import OptionError

MAX_REPLICAS: Final = 256


class Discovery(Protocol):
    """Source of endpoints; another kind needs no more than this."""

    def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        """All endpoints, at once and after each change; the last stay when it ends."""
        ...


class StaticAddresses:
    """A list that never changes."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    async def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        yield tuple(Endpoint(address=address) for address in self._addresses)


def addresses(name: str, text: str) -> tuple[str, ...]:
    """An option's comma list, "a:1,b:2"; raises OptionError."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or len(set(found)) < len(found) or len(found) > MAX_REPLICAS:
        remedy = f"must be host:port, or 2 to {MAX_REPLICAS} different ones with commas between"
        raise OptionError(name, text, remedy)
    return found


def discovery(name: str, text: str) -> Discovery:
    """What an option stands for; raises OptionError."""
    return StaticAddresses(addresses(name, text))
