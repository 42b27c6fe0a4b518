"""Options that every service has; each service's own config dataclass inherits them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serving.address import is_host
from serving.log import LogFormat
from serving.options import OptionError, field
from serving.peers import AllowedCallers, Gate
from serving.tls import Tls
from serving.transport.unix_socket import path_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceOptions:
    """A subclass's __post_init__ begins with `ServiceOptions.__post_init__(self)`."""

    host: str = field("127.0.0.1", help="address to listen on")
    port: int = field(0, help="TCP port to listen on; 0 takes a free one")
    listen: str | None = field(
        None, help="Unix socket to listen on in place of --host and --port, as unix:/path"
    )
    metrics_port: int = field(
        0, help="HTTP port of /metrics, /liveness and /readiness on --host; 0 is none"
    )
    log_format: LogFormat = field("text", help="lines of the log: text, or JSON objects")
    trace_endpoint: str | None = field(
        None, help="URL of an OTLP collector (gRPC) that gets traces, such as http://host:4317"
    )
    tls_cert: Path | None = field(
        None, help="PEM file of this service's certificate chain; without one, no encryption"
    )
    tls_key: Path | None = field(None, help="PEM file of its key")
    tls_ca: Path | None = field(
        None,
        help="PEM file of the CA of the other services; they are spoken to by TLS, and draft and "
        "verify take calls only from holders of its certificates",
    )
    tls_server_name: str | None = field(
        None, help="name in the other services' certificates, if not the host of their address"
    )
    tls_allow: str | None = field(
        None,
        help="names in the certificates of callers that may call, with commas between (default: "
        "every holder of a certificate)",
    )

    def __post_init__(self) -> None:
        if self.listen is not None:
            path_of(self.listen)
        if not is_host(self.host):
            raise OptionError("host", self.host, "must be an address or a name to listen on")
        for name in ("port", "metrics_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise OptionError(name, getattr(self, name), "must be in 0..65535")
        for name in ("tls_key", "tls_ca", "tls_server_name"):
            if getattr(self, name) and not self.tls_cert:
                raise OptionError(name, str(getattr(self, name)), "needs --tls-cert and --tls-key")
        if self.tls_allow is not None and not (self.client_ca and self.allowed_callers):
            raise OptionError("tls_allow", self.tls_allow, "needs names, and a CA of callers")

    @property
    def client_ca(self) -> Path | None:
        """Where callers' certificates come from; None asks for none."""
        return self.tls_ca

    @property
    def allowed_callers(self) -> frozenset[str]:
        """Empty: whoever has a certificate."""
        names = (name.strip() for name in (self.tls_allow or "").split(","))
        return frozenset(name for name in names if name)

    def gates(self) -> list[Gate]:
        """What a call must pass; raises OptionError."""
        return [AllowedCallers(self.allowed_callers)] if self.allowed_callers else []

    def incoming(self) -> Tls | None:
        """For the listener; raises OptionError."""
        if not self.tls_cert:
            return None
        return Tls(cert=self.tls_cert, key=self.tls_key, ca=self.client_ca)

    def outgoing(self) -> Tls | None:
        """For channels to other services; raises OptionError."""
        if not self.tls_ca:
            return None
        return Tls(
            cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca, server_name=self.tls_server_name
        )


DEFAULTS: Final = ServiceOptions()
