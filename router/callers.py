"""Who may call the router: a TOML file of tokens' hashes and certificates' names, read anew when
it changes.

[team-a]
token_sha256 = "..."             # `domino-serve token team-a` makes a token and this entry
expires = 2027-01-31T00:00:00Z   # optional, as begins
max_requests = 8                 # optional: running at once

[batch]
certificate = "spiffe://example.org/batch"   # a name in its client certificate
"""

import hashlib
import logging
import stat
import tomllib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from router.caller_fields import Caller, read_caller
from serving.errors import Unauthenticated
from serving.options import OptionError
from serving.peers import certificate_names

_log = logging.getLogger(__name__)

ANYBODY: Final = Caller(name="")

# Who makes the call that is being handled; ANYBODY where no file says who may.
CALLER: Final[ContextVar[Caller]] = ContextVar("caller", default=ANYBODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The file's callers by how they are recognised."""

    by_token: dict[str, Caller]
    by_certificate: dict[str, Caller]


class Callers:
    """A gate that sets CALLER. skew_s: how far other clocks may be off."""

    def __init__(
        self, file: Path, skew_s: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Raises OptionError naming the entry that cannot be used."""
        self._file, self._skew, self._now = file, timedelta(seconds=skew_s), now
        self._seen = self._stamp()
        self._known = _read(file)

    def __call__(self, context: Any) -> None:
        """Raises Unauthenticated."""
        self._renew()
        caller = self._of(context)
        now = self._now()
        if caller.expires and now > caller.expires + self._skew:
            raise Unauthenticated(f"the access of {caller.name} ended at {caller.expires}")
        if caller.begins and now < caller.begins - self._skew:
            raise Unauthenticated(f"the access of {caller.name} begins at {caller.begins}")
        CALLER.set(caller)

    def _of(self, context: Any) -> Caller:
        token = _bearer_token(context)
        if token is not None:
            caller = self._known.by_token.get(hashlib.sha256(token.encode()).hexdigest())
            if caller is None:
                raise Unauthenticated("the bearer token is unknown")
            return caller
        for name in certificate_names(context):
            if name in self._known.by_certificate:
                return self._known.by_certificate[name]
        raise Unauthenticated("send a bearer token, or call with a certificate that is known here")

    def _renew(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._known = _read(self._file)
            _log.info("took up the changed callers of %s", self._file)
        except OptionError as error:
            _log.error("the callers stay as they were: %s", error)

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._file.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def _bearer_token(context: Any) -> str | None:
    """The token sent; None when there is none. Raises Unauthenticated for anything else."""
    sent = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    if not sent:
        return None
    scheme, _, token = str(sent[0]).partition(" ")
    if len(sent) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated("send one authorization header: Bearer TOKEN")
    return token.strip()


def _read(file: Path) -> _Known:
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
        writable = file.stat().st_mode & stat.S_IWOTH
    except (OSError, ValueError) as error:
        raise OptionError("callers", str(file), f"cannot be read: {error}") from error
    if writable:
        raise OptionError("callers", str(file), "can be written by everybody: chmod o-w")
    known = _Known(by_token={}, by_certificate={})
    for name, entry in entries.items():
        caller, token_sha256, certificate = read_caller(file, name, entry)
        for key, place in ((token_sha256, known.by_token), (certificate, known.by_certificate)):
            if key in place:
                raise OptionError("callers", str(file), f"[{name}] repeats [{place[key].name}]'s")
            if key is not None:
                place[key] = caller
    return known
