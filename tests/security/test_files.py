"""Certificate files that cannot be used: told at start, by option and file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from router.config import RouterConfig
from serving.options import OptionError
from serving.service_options import ServiceOptions
from tests.security.certificates import Authority, Issued


@pytest.fixture
def issued(tmp_path: Path) -> Issued:
    return Authority(tmp_path).issue("localhost")


def refusal(**options: Path | str | None) -> OptionError:
    with pytest.raises(OptionError) as caught:
        ServiceOptions(**options).incoming()  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_ca"])
@pytest.mark.parametrize("wrong", ["missing", "folder", "not PEM", "empty"])
def test_a_file_that_is_none(issued: Issued, tmp_path: Path, name: str, wrong: str) -> None:
    """Prevents a service that starts and refuses every handshake."""
    file = tmp_path / "wrong"
    if wrong == "folder":
        file.mkdir()
    elif wrong != "missing":
        file.write_text("nothing of the kind" if wrong == "not PEM" else "")
    error = refusal(**issued.flags() | {name: file})
    # Two files are read as a pair, so a broken certificate is told as a key that does not fit.
    assert str(file) in str(error)
    assert error.field == name or (name, error.field) == ("tls_cert", "tls_key")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(issued: Issued) -> None:
    """Prevents a traceback for a secret mounted for another user."""
    issued.key.chmod(0)
    assert "Permission denied" in str(refusal(**issued.flags()))


def test_a_key_of_another_certificate(issued: Issued, tmp_path: Path) -> None:
    """Prevents a half-done renewal from taking a service down unexplained."""
    other = Authority(tmp_path / "other").issue("localhost")
    error = refusal(**issued.flags() | {"tls_key": other.key})
    assert error.field == "tls_key"
    assert f"does not go with {issued.cert}" in str(error)


def test_an_encrypted_key(issued: Issued) -> None:
    """Prevents a service that waits at a terminal for a password."""
    key = load_pem_private_key(issued.key.read_bytes(), None)
    locked = BestAvailableEncryption(b"secret")
    issued.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    assert "unencrypted" in str(refusal(**issued.flags()))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tls_cert": Path("c")}, "tls_cert: 'c' needs tls_key too"),
        ({"tls_key": Path("k")}, "tls_key: 'k' needs --tls-cert"),
        ({"tls_ca": Path("a")}, "tls_ca: 'a' needs --tls-cert"),
        ({"tls_server_name": "n"}, "tls_server_name: 'n' needs --tls-cert"),
        ({"tls_cert": Path("c"), "tls_key": Path("k"), "tls_allow": "n"}, "tls_allow: 'n'"),
        (
            {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_ca": Path("a"), "tls_allow": " ,"},
            "tls_allow: ' ,' needs names",
        ),
    ],
)
def test_options_that_do_nothing_by_themselves(options: dict[str, Path], named: str) -> None:
    """Prevents a service that looks protected and is not."""
    assert named in str(refusal(**options))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tls_client_ca": Path("a")}, "tls_client_ca: 'a' needs --tls-cert"),
        ({"callers": Path("c"), "host": "0.0.0.0"}, "tokens travel readable"),
    ],
)
def test_a_front_door_that_does_not_close(options: dict[str, Path], named: str) -> None:
    """Prevents tokens in plaintext, and a client CA that nobody is asked for."""
    with pytest.raises(OptionError) as caught:
        RouterConfig(target=Path("t"), verify="v:1", **options)  # type: ignore[arg-type]
    assert named in str(caught.value)


@pytest.mark.parametrize("module", ["verify_service", "draft_service", "router"])
def test_each_service_says_so_in_one_line(module: str, issued: Issued, tmp_path: Path) -> None:
    """Prevents a traceback, and a model loaded for nothing."""
    missing = tmp_path / "missing.pem"
    needed = {"verify_service": [], "draft_service": ["--draft", "d"], "router": ["--verify=v:1"]}
    command = [sys.executable, "-m", module, "--target", "t", *needed[module]]
    command += ["--tls-cert", str(missing), "--tls-key", str(issued.key)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert f"option tls_cert: '{missing}' cannot be read" in result.stderr
    assert result.stderr.count("\n") == 1
