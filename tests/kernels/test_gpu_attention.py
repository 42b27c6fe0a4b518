"""The verify attention kernel under Triton's interpreter, against float64, pages poisoned."""

import pytest

from tests.kernels.interpreted import run_all_interpreted

pytest.importorskip("triton")

CASES = """
from domino_kernels.gpu.attention import KeyTiles, Queries, attention_reference, paged_attention

def case(*, heads, kv, dim, page, spans, width, window=None, seed=0):
    rng = torch.Generator().manual_seed(seed)
    used = [-(-(start + count) // page) for start, count in spans]
    order = torch.randperm(sum(used) + 3, generator=rng).tolist()
    k, v = (torch.full((len(order), kv, page, dim), torch.nan) for _ in range(2))
    table = torch.full((len(spans), max(used) + 1), len(order) - 1, dtype=torch.int32)
    rows, tiles, last = len(spans) * width, [], torch.zeros(len(spans) * width, dtype=torch.int32)
    for b, (start, count) in enumerate(spans):
        mine = [order.pop() for _ in range(used[b])]
        table[b, : used[b]] = torch.tensor(mine)
        for p in range(start + count):
            for x in (k, v):
                x[mine[p // page], :, p % page] = torch.randn(kv, dim, generator=rng)
        last[b * width : b * width + count] = torch.arange(start, start + count) + 1
        tiles.append((b * width, count, b))
    first = None if window is None else (last - window).clamp(min=0)
    queries = Queries(
        tiles=torch.tensor(tiles, dtype=torch.int32), tile_rows=width, table=table, last=last,
        first=first,
    )
    return torch.randn(rows, heads, dim, generator=rng), (k, v), queries

def check(splits, least, walk=None, fill=False, **sizes):
    q, kv, queries = case(**sizes)
    rows = queries.tiles.clone()
    if fill:  # up to the tile's height, as steps of a fixed width are
        queries.tiles[:, 1] = sizes["width"]
    out = paged_attention(q, kv, queries, splits=splits, least=least, walk=walk)
    queries.tiles[:] = rows
    compare(out, q, kv, queries)

def compare(out, q, kv, queries):
    kv = tuple(x.nan_to_num(0.0) for x in kv)
    wanted = attention_reference(q, kv, queries).float()
    for first, count, _ in queries.tiles.tolist():
        torch.testing.assert_close(
            out[first : first + count], wanted[first : first + count], atol=2e-5, rtol=2e-5
        )
"""

RUNS = {
    "gqa": "check(3, 32, heads=4, kv=2, dim=16, page=16, spans=[(70, 3), (0, 1), (33, 2)], "
    "width=3)",
    "one_program": "check(1, 32, heads=2, kv=2, dim=64, page=64, spans=[(65, 2), (5, 2)], width=2)",
    "wide": "check(2, 32, heads=8, kv=1, dim=20, page=32, spans=[(40, 17)], width=17)",
    "window": "check(2, 32, heads=2, kv=1, dim=16, page=16, spans=[(90, 2), (3, 1)], width=2, "
    "window=20)",
    "tiles": "check(2, 32, walk=KeyTiles(16, 2, 4, tiled=True), heads=4, kv=2, dim=16, page=32, "
    "spans=[(79, 3), (80, 2), (0, 1)], width=3, fill=True)",
    "tiles_window": "check(1, 32, walk=KeyTiles(16, 2, 4, tiled=True), heads=2, kv=1, dim=16, "
    "page=32, spans=[(90, 2)], width=2, window=20)",
    "more_splits_than_keys": "check(8, 32, heads=6, kv=1, dim=16, page=16, spans=[(40, 1)], "
    "width=1)",
}


def test_attention_equals_float64() -> None:
    """Unused pages and unwritten scratch hold NaN: one key read too many shows in the output."""
    run_all_interpreted({name: CASES + run for name, run in RUNS.items()})


FIXED = """
from domino_kernels.gpu import attention_fixed
from domino_kernels.gpu.attention_fixed import Cuts, fixed_attention

attention_fixed.NEAR, attention_fixed.NEAR_KEYS = 2, 64
attention_fixed.PROGRAMS = PROGRAMS
cuts = Cuts(128, 4)
assert [cuts.pieces(n) for n in (64, 65, 128, 129, 257)] == [1, 2, 2, 3, 4]
sizes = dict(heads=4, kv=2, dim=16, page=16, spans=[(290, 3), (2, 1), (63, 2)], width=3)
q, kv, queries = case(**sizes)
out = fixed_attention(q, kv, queries, cuts, 4)
compare(out, q, kv, queries)
queries.tiles[:] = torch.tensor([[0, 1, 0], [3, 1, 1], [6, 1, 2]])
alone = fixed_attention(q, kv, queries, cuts, 4)
rows = [0, 3, 6]
assert torch.equal(out[rows], alone[rows]), "rows behind it change no bit of a row"
"""


def test_fixed_cuts_equal_float64() -> None:
    """A piece that is not read, or read twice, by programs that share them in another way."""
    run_all_interpreted(
        {f"{n} programs": CASES + FIXED.replace("PROGRAMS\n", f"{n}\n") for n in (1, 64)}
    )
