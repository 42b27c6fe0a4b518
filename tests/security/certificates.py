"""Certificates made when tests run."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from serving.tls import Tls

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Issued:
    """Files of one certificate and of the CA that its holder trusts."""

    cert: Path
    key: Path
    ca: Path

    def tls(self, *, server_name: str | None = "localhost") -> Tls:
        return Tls(cert=self.cert, key=self.key, ca=self.ca, server_name=server_name)

    def flags(self) -> dict[str, Path]:
        """As options of a service."""
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_ca": self.ca}


class Authority:
    """A CA that writes what it issues into a folder."""

    def __init__(self, folder: Path) -> None:
        self._ca, self._folder = trustme.CA(), folder
        self._folder.mkdir(exist_ok=True)
        self.cert = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.cert))

    def issue(self, *names: str, expired: bool = False, to: str | None = None) -> Issued:
        """A certificate for these names, in files called after the first or `to`."""
        ends = LONG_AGO + timedelta(days=1) if expired else None
        made = self._ca.issue_cert(*names, not_before=LONG_AGO, not_after=ends)
        stem = to or names[0]
        cert, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        made.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        return Issued(cert=cert, key=key, ca=self.cert)
