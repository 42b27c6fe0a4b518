"""EndpointSlices read: good ones, and everything else that JSON can be."""

import json

import pytest

from router.endpoint_slices import endpoints
from tests.router.endpoint_sets import addresses
from tests.router.fake_kubernetes import endpoint, endpoint_slice

GARBAGE: list[object] = [
    None,
    7,
    "text",
    [],
    {},
    {"endpoints": 3},
    {"addressType": "IPv4", "endpoints": "x"},
]
BAD_ENTRIES: list[object] = [
    *(None, 7, "text", {}, {"addresses": []}, {"addresses": ["no address"]}, {"addresses": [None]}),
    {"addresses": ["10.0.0.300"]},
    {"addresses": {"0": "10.0.0.1"}},
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=json.dumps)
def test_slices_that_are_none_are_left_out(garbage: object) -> None:
    """Prevents one unreadable slice from hiding the others."""
    good = endpoint_slice("a", endpoint("10.0.0.1"))
    assert addresses(endpoints([garbage, good], "grpc")) == ["10.0.0.1:50052"]


@pytest.mark.parametrize("entry", BAD_ENTRIES, ids=json.dumps)
def test_entries_that_are_none_are_left_out(entry: object) -> None:
    """Prevents addresses that no channel can be made to."""
    good = endpoint_slice("a", entry, endpoint("10.0.0.1"))
    assert addresses(endpoints([good], "grpc")) == ["10.0.0.1:50052"]


def test_ports_by_number_and_by_name() -> None:
    """Prevents port 0, text and another port's number from becoming an address."""
    one = endpoint_slice("a", endpoint("10.0.0.1"))
    assert addresses(endpoints([one], "9")) == ["10.0.0.1:9"]
    for ports in (None, [], [None], [{"name": "grpc"}], [{"name": "grpc", "port": 70000}], "grpc"):
        assert endpoints([one | {"ports": ports}], "grpc") == ()


def test_a_pod_with_two_families_is_one_replica() -> None:
    """Prevents dual-stack pods from counting, and being loaded, twice."""
    four, six = endpoint("10.0.0.1"), endpoint("fd00::1")
    both = [endpoint_slice("a", four), endpoint_slice("b", six, family="IPv6")]
    assert addresses(endpoints(both, "grpc")) == ["10.0.0.1:50052"]
    assert addresses(endpoints(both[1:], "grpc")) == ["[fd00::1]:50052"]
