"""EndpointSlices as the Kubernetes API gives them, JSON in, endpoints that may get requests out."""

import ipaddress
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from router.endpoint import Endpoint, join

_log = logging.getLogger(__name__)


def endpoints(slices: Iterable[Any], port: str) -> tuple[Endpoint, ...]:
    """Ready ones only; a terminating one is none, whatever it still answers to probes.

    port: its number, or its name in the Service. What cannot be read is left out and told. Where a
    Service has IPv4 slices, IPv6 ones are the same pods again.
    """
    found: dict[str, set[Endpoint]] = {"IPv4": set(), "IPv6": set()}
    for one in slices:
        family = one.get("addressType") if isinstance(one, dict) else None
        if family in found:
            found[family].update(_of_slice(one, port))
        else:
            _log.warning("an EndpointSlice of address type %r is left out", family)
    return tuple(sorted(found["IPv4"] or found["IPv6"]))


def _of_slice(one: dict[str, Any], port: str) -> Iterator[Endpoint]:
    number = _port_number(one.get("ports"), port)
    entries = one.get("endpoints")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not _may_be_used(entry):
            continue
        host = _host(entry)
        if host is None or number is None:
            _log.warning("an endpoint without a usable address or port %s is left out", port)
            continue
        yield Endpoint(
            address=join(host, number), node=_text(entry, "nodeName"), zone=_text(entry, "zone")
        )


def _may_be_used(entry: dict[str, Any]) -> bool:
    """A condition that is not told counts as good: ready, and not terminating."""
    conditions = entry.get("conditions")
    if not isinstance(conditions, dict):
        return True
    return conditions.get("ready") is not False and not conditions.get("terminating")


def _host(entry: dict[str, Any]) -> str | None:
    """The first address; the others are the same pod's."""
    addresses = entry.get("addresses")
    if isinstance(addresses, list) and addresses and isinstance(addresses[0], str):
        with suppress(ValueError):
            return str(ipaddress.ip_address(addresses[0]))
    return None


def _port_number(ports: Any, port: str) -> int | None:
    if port.isdecimal():
        return int(port)
    for one in ports if isinstance(ports, list) else ():
        if isinstance(one, dict) and one.get("name") == port:
            number = one.get("port")
            return number if type(number) is int and 0 < number < 65536 else None
    return None


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""
