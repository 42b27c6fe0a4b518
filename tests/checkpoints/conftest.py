"""Tiny targets, a fresh copy for every test."""

import shutil
from pathlib import Path

import pytest

from tests.tiny_models import write_target


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An untied Qwen3 and a tied Llama."""
    folders = {family: tmp_path_factory.mktemp(family) for family in ("qwen3", "llama")}
    for family, folder in folders.items():
        write_target(family, folder)
        (folder / "generation_config.json").unlink()
    return folders


@pytest.fixture
def qwen3(models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(models["qwen3"], tmp_path / "qwen3"))


@pytest.fixture
def llama(models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(models["llama"], tmp_path / "llama"))
