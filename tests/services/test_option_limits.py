"""Numeric options of the three services, and hosts: limits are served, what is beyond refused."""

import dataclasses
import math
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from draft_service.config import DraftServiceConfig
from router.config import RouterConfig
from serving.options import MAX_S, OptionError
from verify_service.config import VerifyConfig

REQUIRED: dict[Any, dict[str, Any]] = {
    VerifyConfig: {"target": Path("t"), "draft": Path("d")},
    DraftServiceConfig: {"target": Path("t"), "draft": Path("d")},
    RouterConfig: {"target": Path("t"), "verify": "v:1"},
}
# Least value of each option; 1 where nothing is said.
LEAST = dict.fromkeys(
    ("port", "metrics_port", "threads", "width", "max_waiting", "draft_window"), 0
)
NO_WAIT_AT_0 = {RouterConfig}  # its durations may be 0
ELSEWHERE: set[tuple[Any, str]] = {
    (VerifyConfig, "kv_tokens"),  # its least depends on the device
    (DraftServiceConfig, "confidence_threshold"),  # a probability, see below
}


def options(kind: type) -> list[tuple[Any, str]]:
    return [
        (config, name)
        for config in REQUIRED
        for name, hint in get_type_hints(config).items()
        if hint is kind and (config, name) not in ELSEWHERE
    ]


def made(config: Any, name: str, value: float | str) -> float | str:
    return getattr(config(**REQUIRED[config], **{name: value}), name)  # type: ignore[no-any-return]


def refused(config: Any, name: str, value: float | str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: ") as caught:
        made(config, name, value)
    assert (caught.value.field, str(caught.value.value)) == (name, str(value))


@pytest.mark.parametrize(("config", "name"), options(int), ids=lambda v: getattr(v, "__name__", v))
def test_counts(config: Any, name: str) -> None:
    """Prevents a service that starts with a size it fails on at the first request."""
    least = LEAST.get(name, 1)
    assert made(config, name, least) == least
    refused(config, name, least - 1)
    refused(config, name, -(2**63))
    if name in ("port", "metrics_port"):
        assert made(config, name, 65535) == 65535
        refused(config, name, 65536)


@pytest.mark.parametrize("config", [config for config, name in options(str) if name == "host"])
@pytest.mark.parametrize("value", ["", " ", "a host", "127.0.0.1\n"])
def test_hosts(config: Any, value: str) -> None:
    """Prevents gRPC's own words for an address that is none, after models have loaded."""
    assert made(config, "host", "0.0.0.0") == "0.0.0.0"
    refused(config, "host", value)


@pytest.mark.parametrize(
    ("config", "name"), options(float), ids=lambda v: getattr(v, "__name__", v)
)
def test_durations(config: Any, name: str) -> None:
    """Prevents waits that never end, end at once, or overflow in the middle of a request."""
    assert made(config, name, 1e-3) == 1e-3
    assert made(config, name, MAX_S) == MAX_S
    for value in (math.nan, math.inf, -math.inf, -1e-9, math.nextafter(MAX_S, math.inf)):
        refused(config, name, value)
    if config in NO_WAIT_AT_0:
        assert made(config, name, 0.0) == 0
    else:
        refused(config, name, 0.0)


def test_no_numeric_option_is_left_out() -> None:
    """Prevents an option of another type from escaping these tests."""
    tested = {*options(int), *options(float), *ELSEWHERE}
    for config in REQUIRED:
        for field in dataclasses.fields(config):
            if type(field.default) in (int, float):
                assert (config, field.name) in tested


def test_probabilities() -> None:
    """A threshold of 1 would end every block after its first proposal."""
    for value in (0.0, 0.5):
        assert made(DraftServiceConfig, "confidence_threshold", value) == value
    for value in (-1e-9, 1.0, math.nan, math.inf):
        refused(DraftServiceConfig, "confidence_threshold", value)


def test_candidates() -> None:
    """A mode that cannot be read must not become the full vocabulary."""

    def candidates(value: str) -> int | str:
        config = DraftServiceConfig(**REQUIRED[DraftServiceConfig], domino_candidates=value)
        return config.candidates

    assert [candidates(value) for value in ("0", "2048", "certified")] == [0, 2048, "certified"]
    for value in ("-1", "certain", "", "1.5"):
        with pytest.raises(OptionError, match="option domino_candidates: "):
            candidates(value)
