"""What may stand for a place to connect to, host:port or unix:/path, and for one to listen on."""

import re

from serving.transport.unix_socket import is_unix


def is_address(text: str) -> bool:
    """Whether it can be one; whether somebody listens there is another question."""
    if is_unix(text):
        return True
    found = re.fullmatch(r"[^/\s]+:([0-9]{1,5})", text)  # gRPC takes 99999 for 34463
    return found is not None and 0 < int(found[1]) < 65536


def is_host(text: str) -> bool:
    """Whether it can be an address or a name to listen on."""
    return re.fullmatch(r"\S+", text) is not None
