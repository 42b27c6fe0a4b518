"""Replicas behind a DNS name, such as a headless service: asked again and again, changes told."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from router.endpoint import Endpoint, join

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
# The name server's word that there is nobody, as for a headless service without a ready pod.
# Everything else is its own trouble, and says nothing about the replicas.
_NOBODY: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

Resolve = Callable[[str, int], Awaitable[list[str]]]


class DnsName:
    """An address per record of `host`; an IPv6 record counts where there is no IPv4 one."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        interval_s: float = INTERVAL_S,
        resolve: Resolve | None = None,
    ) -> None:
        self._host, self._port, self._interval_s = host, port, interval_s
        self._resolve = resolve or resolve_by_system

    async def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        """A name without records yields an empty set; a failing name server yields nothing."""
        known: tuple[Endpoint, ...] | None = None
        while True:
            found = await self._lookup()
            if found is not None and found != known:
                known = found
                yield known
            await asyncio.sleep(self._interval_s)

    async def _lookup(self) -> tuple[Endpoint, ...] | None:
        try:
            hosts = await self._resolve(self._host, self._port)
        except socket.gaierror as error:
            if error.errno in _NOBODY:
                return ()
            _log.warning("%s cannot be looked up (%s): nothing changes", self._host, error)
            return None
        # A pod has an address of its own, so that here a host is as much as is known of a node.
        return tuple(
            sorted(Endpoint(address=join(host, self._port), node=host) for host in set(hosts))
        )


async def resolve_by_system(host: str, port: int) -> list[str]:
    """IP addresses of one family, IPv4 first: a pod with both is one replica."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family: dict[int, list[str]] = {}
    for family, _, _, _, address in infos:
        by_family.setdefault(family, []).append(str(address[0]))
    return by_family.get(socket.AF_INET) or by_family.get(socket.AF_INET6, [])
