"""The kernels of a target's step, each beside its torch reference, under Triton's interpreter."""

import pytest

from tests.kernels.interpreted import run_all_interpreted

pytest.importorskip("triton")

NORM = """
from domino_kernels.gpu.norm import add_rms_norm, add_rms_norm_reference, norm_to_slots

rng = torch.Generator().manual_seed(1)
for n, hidden, parts in ((3, 48, 2), (1, 64, 1), (4, 100, 3)):
    stream = torch.randn(n, hidden, generator=rng)
    delta = torch.randn(parts, n, hidden, generator=rng)
    weight = torch.randn(hidden, generator=rng)
    wanted, normed = add_rms_norm_reference(stream, delta, weight, 1e-5)
    taps = torch.full((n, 2, hidden), torch.nan)
    out = add_rms_norm(stream, delta, weight, 1e-5, tap=taps[:, 1])
    torch.testing.assert_close(stream, wanted)
    torch.testing.assert_close(taps[:, 1], wanted)
    assert taps[:, 0].isnan().all()
    torch.testing.assert_close(out, normed)
    torch.testing.assert_close(add_rms_norm(stream, None, weight, 1e-5), normed)
    bias = torch.randn(hidden, generator=rng)
    add_rms_norm(stream, delta, weight, 1e-5, bias=bias)
    torch.testing.assert_close(stream, wanted + delta.sum(0) + bias)
    table = torch.full((9, hidden), torch.nan)
    slots = torch.tensor([7, -1, 2, 5], dtype=torch.int32)[:n]
    norm_to_slots(delta, weight, 1e-5, table, slots)
    wanted = add_rms_norm_reference(torch.zeros_like(stream), delta, weight, 1e-5)[1]
    kept = slots >= 0
    torch.testing.assert_close(table[slots[kept].long()], wanted[kept])
    assert int(table.isnan().any(1).sum()) == 9 - int(kept.sum())
"""

ROPE = """
from domino_kernels.gpu.rope_store import Heads, rope_store, rope_store_reference

rng = torch.Generator().manual_seed(2)
for heads, kv, dim, norm in ((4, 2, 16, True), (3, 1, 12, False)):
    width = (heads + 2 * kv) * dim
    spec = Heads(
        heads=heads, kv_heads=kv, head_dim=dim, eps=1e-6,
        bias=None if norm else torch.randn(width, generator=rng),
        q_norm=torch.randn(dim, generator=rng) if norm else None,
        k_norm=torch.randn(dim, generator=rng) if norm else None,
    )
    parts = torch.randn(2, 5, width, generator=rng)
    angles = torch.randn(50, dim // 2, generator=rng), torch.randn(50, dim // 2, generator=rng)
    positions = torch.tensor([30, 31, 7, 0, 49], dtype=torch.int32)
    slots = torch.tensor([14, 15, -1, 0, 9], dtype=torch.int32)
    k, v = (torch.full((4, kv, 4, dim), torch.nan) for _ in range(2))
    q = rope_store(parts, spec, angles, positions, slots, (k, v))
    wanted = rope_store_reference(parts.sum(0), spec, angles, positions)
    torch.testing.assert_close(q, wanted[0], atol=1e-5, rtol=1e-5)
    for pages, rows in ((k, wanted[1]), (v, wanted[2])):
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                found = pages[slot // 4, :, slot % 4]
                torch.testing.assert_close(found, rows[row], atol=1e-5, rtol=1e-5)
        assert int((~pages.isnan()).all(3).all(1).sum()) == 4, "only the given slots are written"
"""

SILU = """
from domino_kernels.gpu.silu import silu_mul, silu_mul_reference

parts = torch.randn(2, 3, 260, generator=torch.Generator().manual_seed(3))
torch.testing.assert_close(silu_mul(parts, parts.dtype), silu_mul_reference(parts))
bias = torch.randn(260)
found = silu_mul(parts, parts.dtype, bias)
torch.testing.assert_close(found, silu_mul_reference(parts + bias / 2))
"""

ACCEPT = """
from domino_kernels.gpu.accept import greedy_accept, greedy_accept_reference

rng = torch.Generator().manual_seed(4)
for batch, width, vocab in ((4, 5, 5000), (2, 1, 31), (3, 17, 100)):
    logits = torch.randn(batch * width, vocab, generator=rng)
    logits[0, 3] = logits[0, vocab - 1] = 9.0  # a tie: the lowest id
    choices = logits.argmax(-1).view(batch, width)
    ids = torch.randint(vocab, (batch, width), generator=rng)
    right = torch.tensor([9, 2, 0, 4])[:batch]
    for b in range(batch):
        for j in range(1, min(width, int(right[b]) + 1)):
            ids[b, j] = choices[b, j - 1]
    counts = torch.tensor([width, width, max(1, width - 2), 2])[:batch].clamp(max=width)
    out = greedy_accept(logits, ids.int(), counts.int())
    wanted = greedy_accept_reference(logits, ids, counts)
    assert torch.equal(out, wanted), (out, wanted)
    assert out[0, 2] == 3
    assert out[0, 0] == min(9, width - 1) and out[0, 1] == out[0, 2 + out[0, 0]]
    for bad in (torch.nan, torch.inf, -torch.inf):
        broken = logits.clone()
        broken[0, 5 if bad == bad and bad > 0 else slice(None)] = bad
        broken[0, vocab - 1] = bad
        told = greedy_accept(broken, ids.int(), counts.int())
        assert told[0, 0] == -1 and torch.equal(told[1:], wanted[1:]), bad
"""

LINEAR = """
from domino_kernels.gpu.linear import Tiling, linear_gated, linear_parts, linear_reference
from domino_kernels.gpu.silu import silu_mul_reference

rng = torch.Generator().manual_seed(5)
for rows, features, width in ((3, 64, 64), (17, 70, 50), (1, 33, 100)):
    x, w = torch.randn(rows, width, generator=rng), torch.randn(features, width, generator=rng)
    for splits in (1, 2, 3):
        out = linear_parts(x, w, Tiling(columns=32, depth=16, splits=splits))
        torch.testing.assert_close(
            out.double().sum(0), linear_reference(x, w), atol=1e-4, rtol=1e-4
        )
x, w = torch.randn(19, 48, generator=rng), torch.randn(128, 48, generator=rng)
wanted = silu_mul_reference(linear_reference(x, w)[None])
out = linear_gated(x, w, Tiling(columns=32, depth=16))
torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)
"""

WIDE = """
from functools import partial
from domino_kernels.gpu.linear import Tiling, linear_reference
from domino_kernels.gpu.linear_wide import wide_gated, wide_parts
from domino_kernels.gpu.silu import silu_mul_reference

close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)

rng = torch.Generator().manual_seed(10)
for rows in (3, 70):  # what is behind the last row is neither read nor written
    x, w = torch.randn(rows, 96, generator=rng), torch.randn(64, 96, generator=rng)
    for splits in (1, 3):
        own = Tiling(columns=32, depth=16, splits=splits, rows=64)
        parts = zip(x.chunk(splits, 1), w.chunk(splits, 1))
        wanted = torch.stack([linear_reference(*part) for part in parts])
        close(wide_parts(x, w, own).double(), wanted)
    room = torch.full((1, rows, 64), torch.nan)
    assert wide_parts(x, w, Tiling(columns=32, depth=16, rows=64), room) is room
    assert not room.isnan().any()
    wanted = silu_mul_reference(linear_reference(x, w)[None])
    for columns, more in ((32, 0), (16, 16), (16, 32), (64, 0)):  # the last two: over the edge
        close(wide_gated(x, w, Tiling(columns=columns, more=more, depth=16, rows=64)), wanted)
"""

FIXED = """
from domino_kernels.gpu.few_rows import GatedLinear, GpuLinear, fixed_tilings, wide_gated_tilings
from domino_kernels.gpu.linear import linear_reference

rng = torch.Generator().manual_seed(6)
for features, width in ((64, 96), (70, 50)):
    w = torch.randn(features, width, generator=rng)
    layer = GpuLinear(w, fixed=True)
    for rows in (1, 17):
        x = torch.randn(rows, width, generator=rng)
        found = layer(x).double().sum(0)
        torch.testing.assert_close(found, linear_reference(x, w), atol=1e-4, rtol=1e-4)
        out = torch.full((rows, features), torch.nan)
        assert layer(x, out).data_ptr() == out.data_ptr() and not out.isnan().any()
for shape in ((6144, 4096), (1536, 576), (576, 1536), (49152, 576), (151936, 4096), (4096, 12288)):
    found = fixed_tilings(*shape, 2).values()
    assert len({(t.columns, t.depth, t.splits) for t in found}) == 1, "one order of additions"
    assert max(t.rows for t in found) == 128 and all(t.fits(*shape) for t in found)
for half in (1536, 4096, 11008, 12288, 12800, 25600):
    for t in wide_gated_tilings(half).values():
        tiles = -(-half // (t.columns + t.more))
        held = (t.rows + 2 * (t.columns + t.more)) * t.depth * 2 * t.stages
        assert tiles <= 132 or (tiles <= 264 and 2 * held < 227 * 1024), "all run at once"
        assert held < 227 * 1024, "a multiprocessor's shared memory"
"""

BETWEEN = """
from domino_kernels.gpu.add_parts import add_parts, add_parts_reference
from domino_kernels.gpu.advance import advance
from domino_kernels.gpu.accept import greedy_accept, greedy_accept_reference

rng = torch.Generator().manual_seed(7)
parts = torch.randn(3, 5, 700, generator=rng)
torch.testing.assert_close(add_parts(parts, parts.dtype), add_parts_reference(parts))
room = torch.full((5, 700), torch.nan)
torch.testing.assert_close(add_parts(parts, parts.dtype, room), add_parts_reference(parts))
assert add_parts(parts[:1], parts.dtype).data_ptr() == parts.data_ptr()
assert torch.equal(add_parts(parts[:1], parts.dtype, room), parts[0])

# two halves of a vocabulary, the second one larger: the choices of the whole
logits = torch.randn(6, 201, generator=rng)
logits[1, 100] = logits[1, 150] = 7.0
logits[2, 3] = logits[2, 180] = 8.0
logits[4, 120] = torch.nan
ids = torch.randint(201, (3, 2), generator=rng).int()
counts = torch.tensor([2, 2, 1], dtype=torch.int32)
kept = []
greedy_accept(logits[:, :100].contiguous(), ids, counts, highest=lambda k: kept.append(k) or k)
found = greedy_accept(
    logits[:, 100:].contiguous(), ids, counts, first=100,
    highest=lambda keys: torch.maximum(keys, kept[0]),
)
wanted = greedy_accept_reference(logits.nan_to_num(torch.inf), ids, counts)
assert torch.equal(found, wanted), (found, wanted)
assert found[2, 0] == -1 and found[0, 3] == 100 and found[1, 2] == 3

index = torch.tensor([[5, 6, 7], [11, 0, 3], [43, -1, 15], [12, 0, 4]], dtype=torch.int32)
out = torch.tensor([[0, 91, 91], [0, 92, 92], [0, 93, 93]], dtype=torch.int32)
table = torch.tensor([[9, 8, 10, 2], [0, 0, 0, 0], [3, 6, 0, 0]], dtype=torch.int32)
advance(out, table, index, 4)
assert index.tolist() == [[91, 6, 93], [12, 0, 4], [8, -1, 24], [13, 0, 5]], index
"""

DRAW = """
from domino_kernels.gpu import accept, draw

accept.TILE = draw.TILE = 128  # one tile, as fewer ids than 8192 are anyway

from domino_kernels.gpu.accept import greedy_accept, sampling_accept
from domino_kernels.gpu.draw import draw_reference
from verify_service.sampling import SamplingParams, sample, uniforms

rng = torch.Generator().manual_seed(8)
cases = [
    (2.5, 0, 1.0, 0.0), (0.3, 7, 1.0, 0.0), (2.5, 0, 0.9, 0.0), (2.5, 0, 1.0, 0.2),
    (2.5, 7, 0.5, 0.0), (1.0, 1, 1.0, 0.0), (1.0, 0, 1e-6, 0.0), (2.5, 20, 0.9, 0.3),
]
for dtype in (torch.float32, torch.bfloat16):
    # bfloat16 rows have many equal logits: at the border of top-k all stay, of top-p some
    batch, width, vocab = len(cases) + 1, 2, 100
    logits = (torch.randn(batch * width, vocab, generator=rng) * 2).to(dtype)
    logits[4, :90] = 1.0
    knobs = torch.tensor([*([*case, 0.0] for case in cases), [0.0] * 5], dtype=torch.float64)
    seeds = torch.randint(2**63 - 1, (batch,), generator=rng)
    knobs.view(torch.int64)[:, 4] = seeds
    counts = torch.full((batch,), width, dtype=torch.int32)
    counts[3] = 1
    positions = torch.arange(100, 100 + batch * width, dtype=torch.int32)
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m, seed=int(seed))
        for (t, k, p, m), seed in zip(cases, seeds) for _ in range(width)
    ]
    places = positions[: len(params)] + 1
    wanted = sample(logits[: len(params)], params, places.tolist())
    numbers = uniforms(seeds.repeat_interleave(width)[: len(params)], places.long())
    for row, (own, number) in enumerate(zip(params, numbers.tolist())):
        told = [own.temperature, own.top_k, own.top_p, own.min_p]
        assert draw_reference(logits[row], told, number) == wanted[row]
    ids = torch.full((batch, width), -1, dtype=torch.int32)
    ids[:-1, 1] = wanted.view(-1, width)[:, 0]
    ids[1, 1] += 1
    found = sampling_accept(logits, ids, counts, positions, knobs)
    greedy = greedy_accept(logits, ids, counts)
    used = torch.ones(batch, width, dtype=torch.bool)
    used[3, 1] = used[-1] = False
    choices = found[:, 2:].long()
    assert torch.equal(choices[used], wanted[used[:-1].flatten()])
    assert torch.equal(choices[~used], greedy[:, 2:].long()[~used]), "not asked to be drawn"
    assert found[:-1, 0].tolist() == [int(b not in (1, 3)) for b in range(len(cases))]
    assert torch.equal(found[0, 1], found[0, 3]) and torch.equal(found[1, 1], found[1, 2])
    logits[0, 5] = torch.nan
    broken = sampling_accept(logits, ids, counts, positions, knobs)
    assert broken[0, 0] == -1 and torch.equal(broken[1:], found[1:])
"""

EXCHANGE = """
from domino_kernels.gpu.exchange_norm import exchange_norm
from domino_kernels.gpu.norm import add_rms_norm
rng = torch.Generator().manual_seed(9)
n, hidden, room = 3, 48, 5
rooms = [torch.randn(2, room, hidden, generator=rng) for _ in range(2)]
flags = [torch.zeros(room, 2, dtype=torch.int32) for _ in range(2)]
at = [torch.tensor([x.data_ptr() for x in tensors]) for tensors in (rooms, flags)]
weight, bias = torch.randn(hidden, generator=rng), torch.randn(hidden, generator=rng)
before = torch.randn(n, hidden, generator=rng)
wanted = before.clone()
parts = torch.stack([x[1, :n] for x in rooms])
normed = add_rms_norm(wanted, parts, weight, 1e-5, bias=bias)
flags[0][:n, 1] = 1  # the second rank has told; else the first would wait for it
for rank in range(2):
    stream, tap = before.clone(), torch.full((n, 2, hidden), torch.nan)
    out = exchange_norm(stream, *at, room * hidden, rank, weight, 1e-5, bias=bias, tap=tap[:, 1])
    assert torch.equal(stream, wanted) and torch.equal(out, normed), "bits of the other way"
    assert torch.equal(tap[:, 1], wanted) and tap[:, 0].isnan().all()
    told = [[0, 1] if rank else [1, 0]] * n + [[0, 0]] * (room - n)
    assert flags[1 - rank].tolist() == told, "the other rank is told of each row"
    assert not flags[rank].any(), "what the other told is used up"
"""


def test_kernels_equal_their_references() -> None:
    """A row, slot, part or tie taken wrongly shows nowhere but in the model's answers."""
    run_all_interpreted(
        {
            "norm": NORM,
            "rope": ROPE,
            "silu": SILU,
            "accept": ACCEPT,
            "linear": LINEAR,
            "wide": WIDE,
            "fixed": FIXED,
            "between": BETWEEN,
            "draw": DRAW,
            "exchange": EXCHANGE,
        }
    )
