"""Where replicas of a service are: an option's text in, sets of endpoints out, as they change.

`a:1,b:2` is a list, `dns:NAME:PORT` a name with an address per replica, and
`k8s:[NAMESPACE/]SERVICE:PORT` a Kubernetes Service. router.groups and router.seats take the sets.
"""

import importlib.util
import re
from collections.abc import AsyncIterator
from typing import Final, Protocol

from router.discovery_dns import DnsName
from router.discovery_kubernetes import KubernetesService
from router.endpoint import Endpoint
from serving.address import is_address
from serving.options import OptionError

MAX_REPLICAS: Final = 256
# Names and namespaces of services are DNS labels; a port is a number, or its name in the Service.
_KUBERNETES: Final = re.compile(r"k8s:(?:([a-z0-9-]+)/)?([a-z0-9-]+):([a-z0-9-]+)")
_DNS: Final = re.compile(r"dns:([\w.-]+):(\d+)")


class Discovery(Protocol):
    """Source of endpoints; another kind needs no more than this."""

    def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        """All endpoints, at once and after each change; the last stay when it ends."""
        ...


class StaticAddresses:
    """A list that never changes. Replicas on one host are taken for neighbours."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    async def watch(self) -> AsyncIterator[tuple[Endpoint, ...]]:
        yield tuple(
            Endpoint(address=address, node=address.rpartition(":")[0])
            for address in self._addresses
        )


def discovery(name: str, text: str) -> Discovery:
    """What option `name` stands for; raises OptionError."""
    if text.startswith("k8s:"):
        if not (found := _KUBERNETES.fullmatch(text)) or not _is_port(found[3]):
            raise OptionError(name, text, "must be k8s:SERVICE:PORT or k8s:NAMESPACE/SERVICE:PORT")
        if importlib.util.find_spec("kubernetes") is None:
            raise OptionError(name, text, "needs a client: pip install 'domino-serve[k8s]'")
        return KubernetesService(found[2], found[3], namespace=found[1])
    if text.startswith("dns:"):
        if not (found := _DNS.fullmatch(text)) or not _is_port(found[2]):
            raise OptionError(name, text, "must be dns:NAME:PORT")
        return DnsName(found[1], int(found[2]))
    return StaticAddresses(addresses(name, text))


def addresses(name: str, text: str) -> tuple[str, ...]:
    """An option's comma list, "a:1,b:2"; raises OptionError."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(map(is_address, found)) or len(set(found)) < len(found) or len(found) > MAX_REPLICAS:
        remedy = (
            f"must be host:port or unix:/path, or 2 to {MAX_REPLICAS} different ones with commas "
            "between"
        )
        raise OptionError(name, text, remedy)
    return found


def _is_port(text: str) -> bool:
    """A port number, or a name with a letter in it."""
    return 0 < int(text) < 65536 if text.isdecimal() else True
