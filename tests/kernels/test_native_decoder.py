"""The CPU kernels in C against torch's layers, and each row's independence of its surroundings."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from domino_kernels.attention import Batch, Span, Visibility, causal
from domino_kernels.decoder import LayerShape, Read
from domino_kernels.native.library import library
from domino_kernels.paged_kv import PagedKV
from domino_kernels.rope import RotaryTable
from domino_kernels.stack import Decoder
from serving.rope_config import Rope

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler")

CPU, PAGE, PAGES, POSITIONS = torch.device("cpu"), 8, 40, 200
RULES = {
    "causal": causal,
    "block": Visibility(causal=False),
    "sliding": Visibility(causal=True, window=11),
    "sliding block": Visibility(causal=False, window=5, window_moves=False),
}
# head_dim 64 and 128 have kernels of their own; 12 and 24 are no whole vectors, and beside them the
# gates end within a tile
HEADS = [(6, 2, 12), (3, 1, 24), (9, 3, 64), (4, 1, 64), (2, 1, 128), (3, 3, 128), (2, 1, 256)]


def made(heads: tuple[int, int, int], rules: list[Visibility], *, extras: bool) -> Decoder:
    """A random stack; `extras` adds what only some families have. Weights are no bfloat16."""
    generator = torch.Generator().manual_seed(7)
    num_heads, kv_heads, head_dim = heads
    shape = LayerShape(
        hidden=48,
        intermediate=160 if head_dim % 16 == 0 else 84,
        heads=num_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        eps=1e-5,
        qkv_bias=extras,
        output_bias=extras,
        mlp_bias=extras,
        qk_norm=extras,
        reads_context=True,
    )

    def layer(i: int) -> Read:
        return lambda name, size: torch.randn(size, generator=generator) * 0.2

    rotary = RotaryTable(
        head_dim,
        Rope(kind="default", theta=1e4, original_context=POSITIONS),
        POSITIONS,
        torch.float32,
        CPU,
    )
    return Decoder(shape, layer, rules, rotary, taps=[1, 0])


def noise(decoder: Decoder) -> PagedKV:
    """Every slot holds noise, so that a read outside a sequence's own positions shows."""
    kv = decoder.shape.new_kv(
        layers=len(decoder.layers), pages=PAGES, page_size=PAGE, dtype=torch.float32, device=CPU
    )
    kv.k.normal_(generator=torch.Generator().manual_seed(1))
    kv.v.normal_(generator=torch.Generator().manual_seed(2))
    return kv


def scattered(lengths: list[tuple[int, int]]) -> list[Span]:
    free = list(range(PAGES))
    random.Random(str(lengths)).shuffle(free)
    return [
        Span(start=s, count=n, pages=[free.pop() for _ in range(-(-(s + n) // PAGE))])
        for s, n in lengths
    ]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("extras", [False, True])
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=3))
def test_equals_torch_layer_by_layer(
    heads: tuple[int, int, int], extras: bool, lengths: list[tuple[int, int]]
) -> None:
    """A wrong stride, page, head group, bias, norm or mask edge changes rows, taps or the cache."""
    decoder = made(heads, list(RULES.values()), extras=extras)
    batch = Batch(scattered(lengths), PAGE, CPU)
    x = torch.randn(len(batch.positions), decoder.shape.hidden)
    ours, theirs = noise(decoder), noise(decoder)
    decoder.append(x, batch, ours)
    decoder.append_layer_by_layer(x, batch, theirs)
    torch.testing.assert_close((ours.k, ours.v), (theirs.k, theirs.v), atol=1e-4, rtol=1e-4)
    found, taps = decoder.forward(x, batch, ours)
    attentions = {rule: decoder.attention(batch, rule, x) for rule in RULES.values()}
    expected, their_taps = decoder.layer_by_layer(x, batch, theirs, attentions.__getitem__)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(taps, their_taps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close((ours.k, ours.v), (theirs.k, theirs.v), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@settings(max_examples=10, deadline=None)
@given(position=st.integers(0, 150), before=st.integers(0, 15), after=st.integers(0, 15))
def test_a_row_has_the_same_bits_at_every_width(
    heads: tuple[int, int, int], position: int, before: int, after: int
) -> None:
    """Plain decoding runs one row, verification many: other bits would end exactness."""
    decoder = made(heads, [causal, causal], extras=True)
    start = max(0, position - before)
    pages = range(2, 2 + 22)
    x = torch.randn(position + after + 1 - start, decoder.shape.hidden)
    place = position - start

    def last_row(rows: Tensor, spans: list[Span], index: int) -> tuple[Tensor, PagedKV]:
        return decoder.forward(rows, Batch(spans, PAGE, CPU), kv)[0][index], kv

    kv = noise(decoder)
    wide, _ = last_row(x, [Span(start=start, count=len(x), pages=pages)], place)
    # The same cache, since the row reads what the rows before it have stored.
    alone, _ = last_row(x[place][None], [Span(start=position, count=1, pages=pages)], 0)
    assert torch.equal(wide, alone)
    mate = Span(start=20, count=5, pages=list(range(39, 35, -1)))
    both = torch.cat((torch.randn(5, decoder.shape.hidden), x[place][None]))
    mixed, _ = last_row(both, [mate, Span(start=position, count=1, pages=pages)], 5)
    assert torch.equal(mixed, alone)
