"""The command line at a protected router: files, tokens, and what it refuses to take."""

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.callers import Callers
from tests.router.fake_services import FakeVerify, served
from tests.router.router_process import running_router
from tests.router.services import target
from tests.security.certificates import Authority

__all__ = ["target"]


def run(*arguments: str, token: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **({"DOMINO_SERVE_TOKEN": token} if token else {})}
    command = [sys.executable, "-m", "domino_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def made_token(*arguments: str) -> tuple[str, str]:
    """A new token, and the entry for the file."""
    result = run("token", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr.partition("\n\n")[2]


def test_a_token_and_its_entry_belong_together(tmp_path: Path) -> None:
    """Prevents tokens that no router takes, and files that hold one."""
    token, entry = made_token("team-a", "--days", "2", "--max-requests", "3")
    other, _ = made_token("team-a")
    file = tmp_path / "callers.toml"
    file.write_text(entry)
    Callers(file, 60)
    found = tomllib.loads(entry)["team-a"]
    assert found["token_sha256"] == hashlib.sha256(token.encode()).hexdigest()
    assert found["max_requests"] == 3
    assert abs(found["expires"] - datetime.now(UTC) - timedelta(days=2)) < timedelta(minutes=5)
    assert token not in entry and token != other and len(token) >= 43


@pytest.mark.parametrize("name", ["", "a b", "a]", 'x"'])
def test_names_that_no_file_could_hold(name: str) -> None:
    """Prevents an entry that breaks the file of all callers."""
    result = run("token", name)
    assert (result.returncode, result.stdout) == (2, "")
    assert "must be letters, digits, - and _" in result.stderr


def test_generate_at_a_router_with_tls_and_tokens(target: Path, tmp_path: Path) -> None:
    """Prevents a command line that only works where nothing is protected."""
    authority = Authority(tmp_path / "ca")
    door = authority.issue("router.internal")
    token, entry = made_token("me")
    callers, token_file = tmp_path / "callers.toml", tmp_path / "token"
    callers.write_text(entry)
    token_file.write_text(token + "\n")
    flags = [f"--tls-cert={door.cert}", f"--tls-key={door.key}", f"--callers={callers}"]
    with served(FakeVerify()) as verify, running_router(target, verify, *flags) as address:
        ask = ["generate", "the", "--json", "--max-tokens", "2", "--address", address]
        tls = ["--tls-ca", str(authority.cert), "--tls-server-name", "router.internal"]
        for result in (
            run(*ask, *tls, "--token-file", str(token_file)),
            run(*ask, *tls, token=token),
        ):
            assert result.returncode == 0, result.stderr
            assert len(json.loads(result.stdout)["token_ids"]) == 2
        assert "send a bearer token" in run(*ask, *tls).stderr
        plain = run(*ask, token=token)
        assert (plain.returncode, plain.stdout) == (1, "")
        assert token not in plain.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-ca", "c"], "--tls-ca is for a running router: give --address"),
        (["--token-file", "t"], "--token-file is for a running router: give --address"),
        (["--address", "a:1", "--tls-key", "k"], "--tls-key needs --tls-ca"),
        (["--address", "a:1", "--tls-ca", "/none"], "--tls-ca /none: cannot be read"),
        (["--address", "a:1", "--token-file", "/none"], "--token-file /none: "),
        (["--address", "a:1", "--token-file", "/dev/null"], "must hold one token"),
    ],
)
def test_flags_that_cannot_be_heeded(arguments: list[str], message: str) -> None:
    """Prevents a request that goes out less protected than its sender thinks."""
    result = run("generate", "x", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_environments_token_does_not_travel_readable() -> None:
    """Prevents a token set for one router from being sent to any address in plaintext."""
    result = run("generate", "x", "--address", "router.example:443", token="secret-token")
    assert result.returncode == 2
    assert "would travel readable to router.example" in result.stderr
