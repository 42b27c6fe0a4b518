"""Options from flags and files; each bad one is refused in one line naming it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from serving.options import OptionError, field, parse


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    target: Path = field(help="target's folder")
    port: int = field(0, help="TCP port")
    share: float = field(0.5, help="share of 100%")
    mode: Literal["ar", "domino"] = field("ar", help="mode")
    width: Literal[1, 8, 16] = field(16, help="width")
    verbose: bool = field(False, help="talk")
    draft: str | None = field(None, help="draft")

    def __post_init__(self) -> None:
        if self.port < 0:
            raise OptionError("port", self.port, "must be at least 0")


def parsed(*argv: str) -> Config:
    return parse(Config, argv, prog="demo", description="A demo.")


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parsed(*argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_flags_become_fields_of_their_types() -> None:
    """Prevents options that stay strings."""
    flags = ("--target=t", "--port=7", "--share=1", "--mode=domino", "--width=8", "--verbose")
    assert parsed(*flags, "--draft=h:1") == Config(
        target=Path("t"), port=7, share=1.0, mode="domino", width=8, verbose=True, draft="h:1"
    )
    assert parsed("--target", "t", "--no-verbose") == Config(target=Path("t"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", 'target = "t"\nport = 7\nshare = 1\nmode = "domino"\n'),
        ("c.json", '{"target": "t", "port": 7, "share": 1, "mode": "domino", "draft": null}'),
    ],
)
def test_flags_override_the_file(tmp_path: Path, name: str, text: str) -> None:
    """Prevents a file that silently wins over what the user just typed."""
    file = tmp_path / name
    file.write_text(text)
    config = parsed("--config", str(file), "--port", "9")
    assert config == Config(target=Path("t"), port=9, share=1.0, mode="domino")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ((), "target"),
        (("--target", "t", "--port", "-1"), "port: -1 must be at least 0"),
        (("--target", "t", "--port", "x"), "--port"),
        (("--target", "t", "--mode", "fast"), "--mode"),
        (("--target", "t", "--width", "2"), "--width"),
        (("--target", "t", "--prot", "1"), "--prot"),
        (("--target", "t", "--config", "/nonexistent.toml"), "config"),
    ],
)
def test_bad_flags_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], named: str
) -> None:
    """Prevents a typo that starts a server with a default instead."""
    message = refusal(capsys, *argv)
    assert named in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 1", "prot"),
        ('port = "1"', "port: '1' must be of type int"),
        ("port = true", "port: True must be of type int"),
        ('mode = "fast"', "mode: 'fast' must be one of ar, domino"),
        ("port = -1", "port: -1 must be at least 0"),
        ("port = ", "config"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    """Prevents a misspelt or mistyped key of a file from being dropped."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    message = refusal(capsys, "--target", "t", "--config", str(file))
    assert named in message
    assert message.count("\n") == 1


def test_help_shows_each_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Prevents help that contradicts the dataclass."""
    with pytest.raises(SystemExit) as caught:
        parsed("--help")
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "TCP port (default: 0)" in shown
    assert "share of 100% (default: 0.5)" in shown
    assert "target's folder (required)" in shown
