"""Paged attention against dense softmax attention, and its independence of its surroundings."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from domino_kernels.attention import (
    Batch,
    PagedAttention,
    Span,
    Visibility,
    causal,
)
from domino_kernels.paged_kv import PagedKV

HEADS, KV_HEADS, DIM, PAGE, PAGES = 6, 2, 16, 8, 40
CPU = torch.device("cpu")


def filled_kv(seed: int) -> PagedKV:
    """Every slot holds noise, so that a read outside a sequence's own positions shows."""
    torch.manual_seed(seed)
    kv = PagedKV(
        layers=1,
        pages=PAGES,
        kv_heads=KV_HEADS,
        page_size=PAGE,
        head_dim=DIM,
        dtype=torch.float32,
        device=CPU,
    )
    kv.k.normal_()
    kv.v.normal_()
    return kv


def attend(kv: PagedKV, spans: list[Span], q: Tensor, visible: Visibility) -> Tensor:
    batch = Batch(spans, PAGE, CPU)
    attention = PagedAttention(
        batch, visible, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, dtype=torch.float32
    )
    return attention(q, kv, 0)


def dense(kv: PagedKV, span: Span, q: Tensor, visible: Visibility) -> Tensor:
    """Softmax attention in double over the span's keys, gathered one by one."""
    slots = [(span.pages[p // PAGE], p % PAGE) for p in range(span.end)]
    k = torch.stack([kv.k[0, page, :, slot] for page, slot in slots], 1).double()
    v = torch.stack([kv.v[0, page, :, slot] for page, slot in slots], 1).double()
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
    mask = ~visible.mask(span, span.end)
    scores = q.double().transpose(0, 1) @ k.transpose(1, 2) * DIM**-0.5
    out = scores.masked_fill(mask, -torch.inf).softmax(-1) @ v
    merged: Tensor = out.transpose(0, 1).flatten(1)
    return merged


RULES = {
    "causal": causal,
    "block": Visibility(causal=False),
    "sliding": Visibility(causal=True, window=11),
}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 17)), min_size=1, max_size=4))
def test_equals_dense_attention(rule: str, lengths: list[tuple[int, int]]) -> None:
    """Wrong page, wrong head group, wrong mask edge or a leaked slot each change the result."""
    kv = filled_kv(3)
    free = list(range(PAGES))
    random.Random(str(lengths)).shuffle(free)
    spans = []
    for start, count in lengths:
        needed = -(-(start + count) // PAGE)
        if needed > len(free):
            break
        spans.append(Span(start=start, count=count, pages=[free.pop() for _ in range(needed)]))
    q = torch.randn(sum(s.count for s in spans), HEADS, DIM)
    out = attend(kv, spans, q, RULES[rule])
    first = 0
    for span in spans:
        rows = slice(first, first + span.count)
        first = rows.stop
        expected = dense(kv, span, q[rows], RULES[rule])
        torch.testing.assert_close(out[rows].double(), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(position=st.integers(0, 150), before=st.integers(0, 15), after=st.integers(0, 15))
def test_a_query_has_the_same_bits_at_every_width(position: int, before: int, after: int) -> None:
    """Plain decoding asks for one position, verification for many; the bits must not differ."""
    kv = filled_kv(4)
    start = max(0, position - before)
    pages = range(2, 2 + 22)
    q = torch.randn(position + after + 1 - start, HEADS, DIM)
    wide = Span(start=start, count=len(q), pages=pages)
    alone = Span(start=position, count=1, pages=pages)
    mate = Span(start=20, count=5, pages=list(range(39, 35, -1)))
    expected = attend(kv, [alone], q[position - start][None], causal)[0]
    assert torch.equal(attend(kv, [wide], q, causal)[position - start], expected)
    both = torch.cat((torch.randn(5, HEADS, DIM), q))
    assert torch.equal(attend(kv, [mate, wide], both, causal)[5 + position - start], expected)


def test_scattered_and_contiguous_pages_agree() -> None:
    """Contiguous pages are read as a view, scattered ones are gathered."""
    kv = filled_kv(5)
    scattered = [7, 3, 30, 12]
    for place, page in enumerate(scattered):
        kv.k[0, 20 + place], kv.v[0, 20 + place] = kv.k[0, page], kv.v[0, page]
    q = torch.randn(4, HEADS, DIM)
    one = attend(kv, [Span(start=26, count=4, pages=scattered)], q, causal)
    other = attend(kv, [Span(start=26, count=4, pages=range(20, 24))], q, causal)
    assert torch.equal(one, other)
