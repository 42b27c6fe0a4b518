"""Where one replica of a service is; discovery finds it, groups and seats choose by it."""

from dataclasses import dataclass
from typing import Final

SAME_NODE: Final = 2
SAME_ZONE: Final = 1
FAR: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Endpoint:
    """address is host:port or unix:/path; node and zone are empty where nobody knows them."""

    address: str
    node: str = ""
    zone: str = ""

    def nearness(self, other: "Endpoint") -> int:
        """SAME_NODE, SAME_ZONE, or FAR, which unknown places are too."""
        if self.node and self.node == other.node:
            return SAME_NODE
        return SAME_ZONE if self.zone and self.zone == other.zone else FAR


def join(host: str, port: int) -> str:
    """host:port, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
