"""What a model's name or path resolves to, and what is said when it resolves to nothing."""

from pathlib import Path

import pytest

from domino_cli.errors import UsageError
from domino_cli.models import DEFAULT_DRAFT, resolve_model


def test_a_checkpoint_folder_is_taken_by_path(tmp_path: Path) -> None:
    """Prevents a user's own model being looked up on a hub."""
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_without_config_json_is_refused(tmp_path: Path) -> None:
    """Prevents three services starting before one of them finds nothing to load."""
    with pytest.raises(UsageError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_the_embedded_draft_is_found() -> None:
    """Prevents a demo that runs only in the folder it was written in."""
    assert (resolve_model(DEFAULT_DRAFT) / "model.safetensors").is_file()


def test_neither_folder_nor_name_is_refused_with_the_known_names() -> None:
    """Prevents a mistyped path turning into a download attempt and a traceback."""
    with pytest.raises(UsageError, match=r"'./missing'.*smollm2-135m-instruct"):
        resolve_model("./missing")


def test_an_unreachable_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a page of connection errors where there is no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"'nobody/nothing'.*give the folder's path"):
        resolve_model("nobody/nothing")


def test_a_hub_that_says_nothing_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents an IndexError in place of the remedy: time-outs have no message."""

    def download(name: str, **options: object) -> str:
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UsageError, match=r"\(TimeoutError: \).*give the folder's path"):
        resolve_model("nobody/nothing")
