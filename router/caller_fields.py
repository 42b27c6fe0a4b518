"""One entry of the callers' file in, a caller out; whatever is not understood is refused."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from serving.options import OptionError

_FIELDS: Final = ("token_sha256", "certificate", "begins", "expires", "max_requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """max_requests: running at once, without a limit of its own when None."""

    name: str
    begins: datetime | None = None
    expires: datetime | None = None
    max_requests: int | None = None


def read_caller(file: Path, name: str, entry: Any) -> tuple[Caller, str | None, str | None]:
    """The caller, its token's sha256 and its certificate's name; raises OptionError."""

    def refuse(remedy: str) -> OptionError:
        return OptionError("callers", str(file), f"[{name}] {remedy}")

    if not isinstance(entry, dict):
        raise refuse("must be a table")
    if unknown := entry.keys() - set(_FIELDS):
        raise refuse(f"{', '.join(sorted(unknown))} is unknown; known: {', '.join(_FIELDS)}")
    token_sha256, certificate = entry.get("token_sha256"), entry.get("certificate")
    if (token_sha256 is None) == (certificate is None):
        raise refuse("must have either token_sha256 or certificate")
    if token_sha256 is not None and not re.fullmatch("[0-9a-f]{64}", str(token_sha256)):
        raise refuse("token_sha256 must be 64 hexadecimal digits; `domino-serve token` makes them")
    if certificate is not None and not (isinstance(certificate, str) and certificate):
        raise refuse("certificate must be a name")
    for field in ("begins", "expires"):
        moment = entry.get(field)
        if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo):
            raise refuse(f"{field} must be a date and time with a time zone")
    limit = entry.get("max_requests")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise refuse("max_requests must be a whole number of at least 1")
    caller = Caller(
        name=name, begins=entry.get("begins"), expires=entry.get("expires"), max_requests=limit
    )
    return caller, token_sha256, certificate
