"""PEM files in, gRPC credentials out; renewed files are taken up without a restart.

serving.server and serving.aio_server listen with it, serving.channel connects with it.
"""

import ipaddress
import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from serving.options import OptionError

_log = logging.getLogger(__name__)

Signature = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pems:
    """The contents of the files; None where there is none."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None


class Tls:
    """Own certificate and key, and the CA that the other side's certificate must come from.

    server_name: name in the other side's certificate, where it is not the host of its address.
    Files that change are read again at the next connection; if the new ones cannot be used, the
    old ones stay and the log says why.
    """

    def __init__(
        self,
        *,
        cert: Path | None = None,
        key: Path | None = None,
        ca: Path | None = None,
        server_name: str | None = None,
    ) -> None:
        """Raises OptionError naming the file that cannot be used."""
        if (cert is None) != (key is None):
            given, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
            raise OptionError(given, str(cert or key), f"needs {missing} too: give both")
        self.server_name = server_name
        self._paths = {"tls_cert": cert, "tls_key": key, "tls_ca": ca}
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._pems = self._read()

    def pems(self) -> Pems:
        """The newest usable contents; any thread."""
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._pems = self._read()
                    _log.info("took up renewed certificates")
                except OptionError as error:
                    _log.error("renewed certificates cannot be used, the old ones stay: %s", error)
            return self._pems

    def server_credentials(self) -> grpc.ServerCredentials:
        """With a CA, clients without a certificate of it are refused."""
        first = self.pems()
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first),
            lambda: _configuration(self.pems()),
            require_client_authentication=first.ca is not None,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Without a CA, the system's are trusted."""
        found = self.pems()
        return grpc.ssl_channel_credentials(found.ca, found.key, found.cert)

    def _signature(self) -> Signature:
        """Changes whenever a file is replaced or written."""
        return tuple(_stamp(path) for path in self._paths.values() if path)

    def _read(self) -> Pems:
        read = {name: _bytes(name, path) if path else None for name, path in self._paths.items()}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        cert, key, ca = self._paths.values()
        if cert and key:
            try:
                context.load_cert_chain(cert, key, password="")
            except (ssl.SSLError, OSError) as error:
                remedy = f"does not go with {cert}: {error}; both must be PEM, the key unencrypted"
                raise OptionError("tls_key", str(key), remedy) from error
        if ca:
            try:
                context.load_verify_locations(ca)
            except (ssl.SSLError, OSError) as error:
                raise OptionError(
                    "tls_ca", str(ca), f"holds no PEM certificate: {error}"
                ) from error
        return Pems(cert=read["tls_cert"], key=read["tls_key"], ca=read["tls_ca"])


def is_loopback(host: str) -> bool:
    """Whether what goes to this host stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _bytes(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(name, str(path), f"cannot be read: {error.strerror}") from error


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    assert pems.cert and pems.key, "a server has a certificate"
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)
