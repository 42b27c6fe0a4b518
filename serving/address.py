"""What may stand for a place to connect to: host:port or unix:/path."""

import re

from serving.transport.unix_socket import is_unix


def is_address(text: str) -> bool:
    """Whether it can be one; whether somebody listens there is another question."""
    return is_unix(text) or re.fullmatch(r"[^/\s]+:\d+", text) is not None
