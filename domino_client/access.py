"""A token in, the metadata of every call out; never over a connection that others can read."""

from serving.errors import BadRequest
from serving.tls import Tls, is_loopback
from serving.transport.unix_socket import is_unix

Metadata = tuple[tuple[str, str], ...]


def token_metadata(address: str, tls: Tls | None, token: str | None) -> Metadata:
    """Raises BadRequest for a token that would travel readable, or cannot be a header."""
    if token is None:
        return ()
    if not token or not token.isascii() or not token.isprintable():
        raise BadRequest("token", "must be printable ASCII text")
    host = address.rpartition(":")[0].strip("[]")
    if tls is None and not is_unix(address) and not is_loopback(host):
        raise BadRequest("token", f"would travel readable to {host}: give tls")
    return (("authorization", f"Bearer {token}"),)
