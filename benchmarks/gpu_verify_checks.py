"""What must hold before a verify step is timed; each check raises CheckFailed or yields a line."""

import itertools
import multiprocessing
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu_verify_model import (
    PAGE,
    RandomWeights,
    decoding,
    qwen3_8b,
    random_target,
    step_graphs,
)
from domino_kernels.attention import Batch, Span
from domino_kernels.gpu.accept import greedy_accept, greedy_accept_reference
from domino_kernels.gpu.attention import (
    Queries,
    attention_reference,
    paged_attention,
    pieces,
    tile_rows,
)
from domino_kernels.gpu.few_rows import GatedLinear, GpuLinear
from domino_kernels.gpu.linear import linear_reference
from domino_kernels.gpu.silu import silu_mul_reference
from domino_kernels.rollout_reference import lowest_argmax
from verify_service.gpu_rows import cut, ragged_rows
from verify_service.scheduler import Work
from verify_service.target import Target

ERROR = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
HEADS = ((1, 1, 128), (4, 1, 64), (12, 2, 256), (32, 8, 128), (8, 1, 64), (9, 3, 64))


class CheckFailed(Exception):
    """A kernel's or a step's answer is not the one it must give."""


def relative(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of what was wanted; NaN where anything is."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def expect(name: str, error: float, most: float) -> str:
    """A line; raises unless error <= most, which NaN is not."""
    if not error <= most:
        raise CheckFailed(f"{name}: error {error}, at most {most}")
    return f"{name}: relative error {error:.1e}"


def attention() -> Iterator[str]:
    """Every head shape, dtype and width; in processes, since most of the time goes to compiling."""
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        yield from pool.imap(attention_of, itertools.product(ERROR, HEADS))


def attention_of(kind: tuple[torch.dtype, tuple[int, int, int]]) -> str:
    """Ragged lengths, whole and split; all that must not be read is full of NaN."""
    dtype, (heads, kv_heads, dim) = kind
    worst = 0.0
    for batch, width, page in ((1, 1, 16), (3, 8, 64), (5, 16, 256), (2, 17, 32), (33, 1, 64)):
        q, kv, queries = attention_case(heads, kv_heads, dim, batch, width, page, dtype)
        wanted = attention_reference(q, (kv[0].nan_to_num(), kv[1].nan_to_num()), queries)
        for splits in (
            1,
            3,
            pieces(len(queries.tiles) * kv_heads, queries.tile_rows * heads // kv_heads, dim),
        ):
            found = paged_attention(q, kv, queries, splits=splits)
            used = queries.last > 0
            error = relative(found[used], wanted[used])
            expect(f"attention {dtype} {heads}/{kv_heads} x {dim} q{width}", error, ERROR[dtype])
            worst = max(worst, error)
    return expect(f"attention {dtype} {heads}/{kv_heads} x {dim}", worst, ERROR[dtype])


def attention_case(
    heads: int, kv_heads: int, dim: int, batch: int, width: int, page: int, dtype: torch.dtype
) -> tuple[Tensor, tuple[Tensor, Tensor], Queries]:
    """Sequences of 1, 2, ... pages; the last one shorter than `width`; unused keys are NaN."""
    rng = torch.Generator("cuda").manual_seed(heads * 1000 + width)
    most = min(batch, 7) + 1
    pages = batch * most + 1
    k, v = torch.full((2, pages, kv_heads, page, dim), torch.nan, dtype=dtype, device="cuda")
    table = torch.randperm(batch * most, generator=rng, device="cuda").view(batch, most).int()
    last = torch.zeros(batch * width, dtype=torch.int32, device="cuda")
    for b in range(batch):
        count = width if b + 1 < batch else max(1, width - 3)
        start = (b % most) * page + 5 * b % page
        last[b * width : b * width + count] = start + 1 + torch.arange(count, device="cuda")
        end = min(start + count, most * page)
        last.clamp_(max=most * page)
        for p in range(-(-end // page)):
            size = min(page, end - p * page)
            for x in (k, v):
                shape = (kv_heads, size, dim)
                x[table[b, p], :, :size] = torch.randn(shape, generator=rng, device="cuda").to(
                    dtype
                )
    height = tile_rows(width, heads // kv_heads, dim, dtype.itemsize)
    tiles = [tile for b in range(batch) for tile in cut(b * width, width, height, b)]
    queries = Queries(
        tiles=torch.tensor(tiles, dtype=torch.int32, device="cuda"),
        tile_rows=height,
        table=table,
        last=last,
    )
    q = torch.randn(batch * width, heads, dim, generator=rng, device="cuda").to(dtype)
    return q, (k, v), queries


def linears() -> Iterator[str]:
    """Every row class of every layer shape."""
    for features, width in (
        (6144, 4096),
        (4096, 12288),
        (24576, 4096),
        (4096, 4096),
        (1152, 576),
        (70, 50),
    ):
        worst = 0.0
        w = torch.randn(features, width, device="cuda").bfloat16()
        layer = GpuLinear(w)
        for rows in (1, 7, 16, 17, 32, 33, 64, 65, 128, 129):
            x = torch.randn(rows, width, device="cuda").bfloat16()
            worst = max(worst, relative(layer(x).double().sum(0), linear_reference(x, w)))
        yield expect(f"linear {features} x {width}", worst, 5e-3)
    w = torch.randn(24576, 4096, device="cuda").bfloat16() / 64
    for rows in (1, 16, 17, 32, 33, 65, 128, 200, 256):
        x = torch.randn(rows, 4096, device="cuda").bfloat16()
        wanted = silu_mul_reference(linear_reference(x, w)[None])
        yield expect(f"gated, {rows} rows", relative(GatedLinear(w).gated(x), wanted), 6e-3)


def acceptance() -> Iterator[str]:
    """Counts, ties and broken logits."""
    for batch, width in ((1, 1), (3, 8), (32, 16), (2, 17)):
        logits = torch.randn(batch * width, 50000, device="cuda").bfloat16()  # full of ties
        ids = torch.zeros(batch, width, dtype=torch.int32, device="cuda")
        ids[:, 1:] = lowest_argmax(logits.float()).view(batch, width)[:, :-1]
        ids[:, width // 2 + 1 :] += 1
        counts = torch.arange(batch, device="cuda").int() % width + 1
        logits[-1, 3] = torch.inf
        found = greedy_accept(logits, ids, counts)
        if not torch.equal(found, greedy_accept_reference(logits, ids, counts)):
            raise CheckFailed(f"accept B{batch} q{width}")
    yield "accept equals its reference: ties, ragged counts, no numbers"


def steps() -> Iterator[str]:
    """A graph's step against the torch path, from the same weights, after the same prompt."""
    config, taps = qwen3_8b(layers=3, vocab=8192), (0, 1)
    for dtype in (torch.float32, torch.bfloat16):
        device, weights = torch.device("cuda"), RandomWeights(dtype)
        ours = random_target(config, dtype, taps)
        torch_path = Target(config, weights, dtype=dtype, device=device, taps=taps)  # type: ignore[arg-type]
        prompts = decoding(3, 300, 0, 64, 8192)
        kv, own = torch_path.new_kv(64, PAGE), ours.new_kv(64, PAGE)
        table = torch.zeros(64 * PAGE, config.hidden_size, dtype=dtype, device="cuda")
        work = prompts
        for count in (300, 11):
            if count < 300:
                work = _follow(prompts, count)
            spans = [Span(start=w.start, count=len(w.ids), pages=w.sequence.pages) for w in work]
            ids = torch.tensor([i for w in work for i in w.ids], device="cuda")
            x, _ = torch_path.forward(ids, Batch(spans, PAGE, device), kv)
            wanted = torch_path.logits(x)
            rows = ragged_rows(work, PAGE, ours.plan, device)
            found = ours.logits(ours.forward(rows, own, table))
            most = 2e-5 if dtype == torch.float32 else 3e-2
            yield expect(f"{count} rows a sequence, {dtype}", relative(found, wanted), most)
        graph = step_graphs(ours, own, 4, 16, table)
        chosen = [row[2 : 2 + len(w.ids)] for row, w in zip(graph.launch(work)[0](), work)]  # noqa: B905
        best = wanted.view(3, 11, -1)
        gaps = _shortfalls(best, torch.tensor(chosen, device="cuda"))
        scale = float(best.std())
        most = 1e-4 if dtype == torch.float32 else 0.1
        yield expect(f"graph's choices under the torch path's best, {dtype}", gaps / scale, most)


def _shortfalls(logits: Tensor, chosen: Tensor) -> float:
    """How far the worst choice lies under the highest logit."""
    return float((logits.amax(-1) - logits.gather(-1, chosen[..., None])[..., 0]).max())


def _follow(work: list[Work], count: int) -> list[Work]:
    """The step after `work`: `count` ids a sequence."""
    for item in work:
        item.sequence.kv_len = len(item.ids)
    return [type(w)(sequence=w.sequence, ids=w.ids[:count], choices=count) for w in work]


@torch.inference_mode()
def prove() -> list[str]:
    """Runs every check; prints and returns a line for each."""
    lines = []
    for line in itertools.chain(attention(), linears(), acceptance(), steps()):
        print(line, flush=True)
        lines.append(line)
    return lines
