"""Handshake identities: the first field that differs is named with both values; names are free."""

from collections.abc import Callable
from typing import Any

import pytest

from domino_serve.v1 import verify_pb2 as pb
from serving.draft_format import open_draft
from serving.errors import Mismatch
from serving.fingerprint import draft_fingerprint, require_equal, target_fingerprint
from serving.target_config import open_target
from tests.recorded_models import DOMINO_SHIFT, TARGET


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
def test_every_field_counts_but_the_name(make: Callable[[], Any]) -> None:
    """A field left out of the comparison is a silent low acceptance on the day it differs."""
    mine = make()
    require_equal("model", mine, make())
    for field in mine.DESCRIPTOR.fields:
        value = getattr(mine, field.name)
        assert value, f"{field.name} is not filled in"
        other = type(mine)(**{f.name: getattr(mine, f.name) for f in mine.DESCRIPTOR.fields})
        other.ClearField(field.name)
        other.MergeFrom(type(mine)(**{field.name: changed(value)}))
        if field.name == "name":
            require_equal("model", mine, other)
            continue
        with pytest.raises(Mismatch) as caught:
            require_equal("model", mine, other)
        error = caught.value
        assert error.field == f"model.{field.name}"
        assert (error.expected, error.actual) == (str(value), str(getattr(other, field.name)))
