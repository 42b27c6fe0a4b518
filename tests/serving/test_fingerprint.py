"""Handshake identities: the first field that differs is named with both values; names are free."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domino_serve.v1 import verify_pb2 as pb
from serving.draft_format import open_draft
from serving.errors import Mismatch
from serving.fingerprint import (
    NOT_COMPARED,
    draft_fingerprint,
    require_equal,
    target_fingerprint,
    tokenizer_hash,
)
from serving.target_config import open_target
from tests.recorded_models import DOMINO_SHIFT, TARGET

EMPTY = ("tokenizer_hash", "has_dspark_head")  # here: no tokenizer, a Domino head


def target() -> pb.TargetFingerprint:
    return target_fingerprint(*open_target(TARGET), "float32")


def draft() -> pb.DraftFingerprint:
    return draft_fingerprint(*open_draft(DOMINO_SHIFT, open_target(TARGET)[1]))


def changed(value: object) -> object:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case _:
            return [*value, 5]  # type: ignore[misc]


@pytest.mark.parametrize("make", [target, draft])
def test_every_field_counts_but_names_and_tokenizers(make: Callable[[], Any]) -> None:
    """A field left out of the comparison is a silent low acceptance on the day it differs."""
    mine = make()
    require_equal("model", mine, make())
    for field in mine.DESCRIPTOR.fields:
        value = getattr(mine, field.name)
        assert value or field.name in EMPTY, f"{field.name} is not filled in"
        other = type(mine)(**{f.name: getattr(mine, f.name) for f in mine.DESCRIPTOR.fields})
        other.ClearField(field.name)
        other.MergeFrom(type(mine)(**{field.name: changed(value)}))
        if field.name in NOT_COMPARED:
            require_equal("model", mine, other)
            continue
        with pytest.raises(Mismatch) as caught:
            require_equal("model", mine, other)
        error = caught.value
        assert error.field == f"model.{field.name}"
        assert (error.expected, error.actual) == (str(value), str(getattr(other, field.name)))


def test_the_tokenizer_is_known_by_its_content(tmp_path: Path) -> None:
    """Two tokenizers of one size would pass for each other."""
    assert (NOT_COMPARED, tokenizer_hash(tmp_path)) == (("name", "tokenizer_hash"), "")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_hash(tmp_path) == hashlib.sha256(b"{}").hexdigest()


def test_a_cache_that_cannot_be_written_costs_hashing_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevents a service that does not start where the cache's place is no folder."""
    expected = target().content_hash
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOMINO_SERVE_CACHE", str(tmp_path / "file"))
    assert target().content_hash == expected
