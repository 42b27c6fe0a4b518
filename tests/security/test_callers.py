"""The file of who may call: what is refused in it, and whom it lets in when."""

import hashlib
import os
from collections.abc import Iterable
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from router.callers import CALLER, Callers
from serving.errors import Unauthenticated
from serving.options import OptionError

TOKEN = "k3T-the-token"
HASH = hashlib.sha256(TOKEN.encode()).hexdigest()
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Call:
    """What a gate sees of a call."""

    def __init__(self, *authorization: str, certificate: Iterable[str] = ()) -> None:
        self._metadata = [("authorization", value) for value in authorization]
        self._names = [name.encode() for name in certificate]

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_subject_alternative_name": self._names}


def written(folder: Path, text: str) -> Path:
    file = folder / "callers.toml"
    file.write_text(text)
    return file


def caller(callers: Callers, call: Any) -> str:
    """The caller's name in the call's context."""

    def pass_through() -> str:
        callers(call)
        return CALLER.get().name

    return copy_context().run(pass_through)


BEARER = Call(f"Bearer {TOKEN}")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[a", "cannot be read"),
        ("a = 1", "[a] must be a table"),
        ("[a]", "[a] must have either token_sha256 or certificate"),
        (f'[a]\ntoken_sha256 = "{HASH}"\ncertificate = "n"', "[a] must have either"),
        (f'[a]\ntoken_sha256 = "{HASH[1:]}"', "[a] token_sha256 must be 64 hexadecimal digits"),
        ('[a]\ntoken_sha256 = "' + TOKEN + '"', "[a] token_sha256 must be 64 hexadecimal digits"),
        (f'[a]\ntoken = "{HASH}"', "[a] token is unknown"),
        ('[a]\ncertificate = ""', "[a] certificate must be a name"),
        ('[a]\ncertificate = "n"\nexpires = 2026-12-01T12:00:00', "[a] expires must be a date"),
        ('[a]\ncertificate = "n"\nbegins = "tomorrow"', "[a] begins must be a date"),
        ('[a]\ncertificate = "n"\nmax_requests = 0', "[a] max_requests must be a whole number"),
        ('[a]\ncertificate = "n"\nmax_requests = true', "[a] max_requests must be a whole number"),
        (f'[a]\ntoken_sha256 = "{HASH}"\n[b]\ntoken_sha256 = "{HASH}"', "[b] repeats [a]'s"),
    ],
)
def test_entries_that_are_not_understood(tmp_path: Path, text: str, named: str) -> None:
    """Prevents a misspelt expiry that lets a token in for ever; a token itself is never stored."""
    with pytest.raises(OptionError) as caught:
        Callers(written(tmp_path, text), 60)
    assert named in str(caught.value)


def test_a_missing_file_and_one_that_everybody_may_write(tmp_path: Path) -> None:
    """Prevents a service without callers, and one whose callers anybody can add to."""
    with pytest.raises(OptionError, match="cannot be read"):
        Callers(tmp_path / "none.toml", 60)
    file = written(tmp_path, '[a]\ncertificate = "n"')
    file.chmod(0o666)
    with pytest.raises(OptionError, match="can be written by everybody: chmod o-w"):
        Callers(file, 60)


def test_who_is_known(tmp_path: Path) -> None:
    """Prevents a wrong token from passing, and a header of another form from being ignored."""
    text = f'[team]\ntoken_sha256 = "{HASH}"\n[batch]\ncertificate = "batch.internal"'
    callers = Callers(written(tmp_path, text), 60)
    assert caller(callers, BEARER) == "team"
    assert caller(callers, Call(f"bearer  {TOKEN} ")) == "team"
    assert caller(callers, Call(certificate=["other", "batch.internal"])) == "batch"
    assert CALLER.get().name == ""
    for call in (
        Call(),
        Call("Bearer wrong"),
        Call(f"Bearer {TOKEN}x"),
        Call(f"Bearer {HASH}"),
        Call("Bearer "),
        Call(f"Basic {TOKEN}"),
        Call(TOKEN),
        Call(f"Bearer {TOKEN}", f"Bearer {TOKEN}"),
        Call("Bearer wrong", certificate=["batch.internal"]),
        Call(certificate=["team", "BATCH.internal"]),
    ):
        with pytest.raises(Unauthenticated) as caught:
            caller(callers, call)
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("now", "allowed"),
    [
        (NOON - 2 * MINUTE, False),
        (NOON - MINUTE, True),
        (NOON + timedelta(hours=1) + MINUTE, True),
        (NOON + timedelta(hours=1) + 2 * MINUTE, False),
    ],
)
def test_dates_allow_for_clocks_that_differ(tmp_path: Path, now: datetime, allowed: bool) -> None:
    """Prevents tokens that live on after their end, and new ones refused by a slow clock."""
    text = (
        f'[team]\ntoken_sha256 = "{HASH}"\n'
        "begins = 2026-12-01T12:00:00Z\n"
        "expires = 2026-12-01T14:00:00+01:00"
    )
    callers = Callers(written(tmp_path, text), 60, lambda: now)
    if allowed:
        assert caller(callers, BEARER) == "team"
    else:
        with pytest.raises(Unauthenticated, match=r"the access of team (begins|ended) at 2026"):
            caller(callers, BEARER)


def test_changes_are_taken_up_and_mistakes_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Prevents a revoked token that works until a restart, and a typo that locks everybody out."""
    file = written(tmp_path, f'[team]\ntoken_sha256 = "{HASH}"')
    callers = Callers(file, 60)
    file.write_text("[team")
    assert caller(callers, BEARER) == "team"
    assert "the callers stay as they were" in caplog.text
    file.unlink()
    assert caller(callers, BEARER) == "team"
    file.write_text('[batch]\ncertificate = "n"')
    os.utime(file, ns=(1, 1))
    with pytest.raises(Unauthenticated):
        caller(callers, BEARER)
