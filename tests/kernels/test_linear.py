"""Packed linear layers: right values, and the same bits for a row whatever rows surround it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import domino_kernels.linear
from domino_kernels.linear import Linear, int8_weights
from domino_kernels.native.library import has_int8, library
from domino_kernels.native.linear import FULL, INT8, NativeLinear

SHAPES = [(576, 960), (1536, 576), (2880, 576), (48, 131), (7, 5), (128, 2000)]


@pytest.fixture(params=["native", "packed"], autouse=True)
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kernels in C, and torch's packed products that serve where there is no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "packed":
            patch.setattr(domino_kernels.linear, "library", lambda: None)
        yield


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_values_equal_an_unpacked_product_in_double(inner: int, outer: int, bias: bool) -> None:
    """A packed layout read in the wrong order would give wrong but finite values."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, inner), torch.randn(outer, inner)
    offset = torch.randn(outer) if bias else None
    exact = x.double() @ weight.double().T
    exact = exact if offset is None else exact + offset.double()
    torch.testing.assert_close(Linear(weight, offset)(x).double(), exact, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 300), place=st.floats(0, 1))
def test_a_row_has_the_same_bits_in_every_batch(
    inner: int, outer: int, rows: int, place: float
) -> None:
    """Other bits for 1 row than for 16 make speculative output drift from plain output."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outer, inner, generator=generator)
    row = torch.randn(1, inner, generator=generator)
    layer = Linear(weight)
    batch = torch.randn(rows, inner, generator=generator)
    index = min(int(place * rows), rows - 1)
    batch[index] = row[0]
    assert torch.equal(layer(batch)[index], layer(row)[0])


@pytest.mark.skipif(not has_int8(), reason="needs AVX-512 VNNI")
@pytest.mark.parametrize(("inner", "outer"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 7, 12, 13, 24, 25, 60])
def test_8_bit_products_are_those_of_the_rounded_numbers(inner: int, outer: int, rows: int) -> None:
    """A byte in the wrong place, or a sum that wraps, gives a draft that is never accepted.

    Rounded by hand, and multiplied in double; one row and one output are zero.
    """
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(outer)
    x[-1], weight[0] = 0, 0

    def rounded(values: Tensor) -> Tensor:
        scale = (values.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
        return (values / scale).round().double() * scale.double()

    onto = torch.randn(rows, outer)
    expected = rounded(x) @ rounded(weight).T + bias.double() + onto.double()
    found = NativeLinear(weight, bias, int8=True)(x, onto.clone())
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(not has_int8(), reason="needs AVX-512 VNNI")
def test_layers_have_8_bits_only_where_that_is_asked_for() -> None:
    """A target in 8 bits would give other answers."""
    with int8_weights(True):
        draft = Linear(torch.randn(32, 16)).native
    target = Linear(torch.randn(32, 16)).native
    if draft and target:  # neither is native where there is no compiler
        assert (draft.struct.kind, target.struct.kind) == (INT8, FULL)


def mapping_of(address: int) -> str:
    """What the system says about the memory there."""
    for text in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        first, last = (int(part, 16) for part in text.split()[0].split("-"))
        if first <= address < last:
            return text
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(library() is None, reason="no C compiler")
def test_weights_may_lie_on_huge_pages() -> None:
    """Shared memory, Python's default for anonymous mappings, gets none: a third of the speed."""
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("the system gives no huge pages")
    layer = NativeLinear(torch.randn(1024, 1024), None)
    assert re.search(r"^THPeligible: +1$", mapping_of(layer.struct.weight), re.MULTILINE)
