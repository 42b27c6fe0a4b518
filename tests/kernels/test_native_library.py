"""Building kernels: what happens where no compiler is, one that fails, or no cache to write to."""

import importlib.util
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import domino_kernels.linear
from domino_kernels.cuda.program import keep
from domino_kernels.linear import Linear
from domino_kernels.native import library as built


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """No kernels in the cache, none loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built.library.cache_clear()
    yield monkeypatch
    built.library.cache_clear()


def test_without_a_compiler_torch_computes_and_the_log_names_the_remedy(
    fresh: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without gcc must serve, and its owner must learn why it is slow."""
    fresh.setattr(shutil, "which", lambda name: None)
    fresh.setattr(importlib.util, "find_spec", lambda name: None)
    assert built.library() is None
    assert "install gcc or clang, or `pip install ziglang`" in caplog.text
    layer = Linear(torch.eye(8))
    assert layer.native is None
    assert torch.equal(layer(torch.ones(1, 8)), torch.ones(1, 8))


def test_a_failing_compiler_is_quoted(
    fresh: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An old compiler without vector types must not end the service, nor leave half a library."""
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'vector_size is unknown' >&2\nexit 1\n")
    compiler.chmod(0o755)
    fresh.setenv("CC", str(compiler))
    assert built.library() is None
    assert "vector_size is unknown" in caplog.text
    assert not list(tmp_path.rglob("*.so"))


def test_a_cache_that_cannot_be_written_costs_speed_only(
    fresh: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A container's read-only home must not end the service with a traceback."""
    (tmp_path / "file").touch()
    fresh.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert built.library() is None
    assert "Not a directory" in caplog.text and "$XDG_CACHE_HOME" in caplog.text


def test_the_switch_turns_them_off(
    fresh: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Comparing the two arithmetics needs no second machine."""
    caplog.set_level(logging.INFO)
    fresh.setenv("DOMINO_NATIVE", "0")
    assert built.library() is None
    assert "DOMINO_NATIVE is 0" in caplog.text


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_torch_and_native_products_agree(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are float32 products of the same weights; a packing read wrongly is far off."""
    torch.manual_seed(5)
    weight, bias, x = torch.randn(70, 130), torch.randn(70), torch.randn(rows, 130)
    native = Linear(weight, bias)
    monkeypatch.setattr(domino_kernels.linear, "library", lambda: None)
    plain = Linear(weight, bias)
    assert plain.native is None
    torch.testing.assert_close(native(x), plain(x), atol=1e-4, rtol=1e-4)
    start = torch.randn(rows, 70)
    torch.testing.assert_close(
        native(x, onto=start.clone()), plain(x, onto=start.clone()), atol=1e-4, rtol=1e-4
    )


def test_a_compiled_program_needs_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU service that does not start where its home cannot be written."""
    taken = tmp_path / "file"
    taken.touch()
    keep(b"binary", taken / "cache" / "rollout.cubin")
    assert "compiled kernels cannot be kept" in caplog.text
    keep(b"binary", tmp_path / "cache" / "rollout.cubin")
    assert [file.read_bytes() for file in (tmp_path / "cache").iterdir()] == [b"binary"]
