"""Times tilings of the linear layers and splits of the attention on one GPU, Qwen3-8B shapes.

What domino_kernels.gpu uses was chosen by these figures. Each time is a graph of calls on rotating
weights (or KV layers) that do not fit the L2 cache, microseconds a call.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_verify_timing import graph_us
from domino_kernels.gpu.attention import Queries, paged_attention
from domino_kernels.gpu.linear import Tiling, linear_parts, linear_reference

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (24576, 4096),
    "down": (4096, 12288),
    "head": (151936, 4096),
}
ROWS = (1, 16, 32, 64, 128, 256)
BASE = ((64, 128, 4, 4), (64, 256, 3, 4), (32, 256, 4, 4), (128, 128, 4, 8), (64, 64, 6, 4))
PROGRAMS = 700  # more than these in one launch are not tried with a split


def tilings(name: str, rows: int) -> Iterator[Tiling]:
    """What is tried for a layer."""
    features, width = SHAPES[name]
    tile = min(128, max(16, rows))
    for (columns, depth, stages, warps), splits, ahead in itertools.product(
        BASE, (1, 2, 4, 6, 8), (0, 2)
    ):
        tiling = Tiling(
            columns=columns,
            depth=depth,
            splits=splits,
            stages=stages if tile < 128 else 3,
            warps=warps if tile < 64 else 8,
            ahead=ahead,
            rows=tile,
        )
        programs = features // columns * splits
        few = programs < 128 or (splits > 1 and programs > PROGRAMS)
        if tiling.fits(features, width) and not few and not (tile == 128 and depth == 256):
            yield tiling


def compile_one(case: tuple[str, int, Tiling]) -> None:
    """Launches a tiling once, so that its kernel is in the cache on disk."""
    name, rows, tiling = case
    features, width = SHAPES[name]
    w = torch.empty(features, width, dtype=torch.bfloat16, device="cuda")
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    linear_parts(x, w, tiling)
    torch.cuda.synchronize()


def sweep_linear(name: str, rows: int) -> dict[str, Any]:
    """cuBLAS and every tiling for one layer and row count."""
    features, width = SHAPES[name]
    copies = 2 if name == "head" else 8
    weights = [torch.randn(features, width, device="cuda").bfloat16() / 64 for _ in range(copies)]
    x = torch.randn(rows, width, device="cuda").bfloat16()
    y = torch.empty(rows, features, dtype=x.dtype, device="cuda")
    wanted = linear_reference(x, weights[0])

    def cublas() -> None:
        for w in weights:
            torch.mm(x, w.T, out=y)

    found: dict[str, Any] = {"layer": name, "rows": rows, "cublas": graph_us(cublas, copies)}
    results = []
    for tiling in tilings(name, rows):

        def ours(tiling: Tiling = tiling) -> None:
            for w in weights:
                linear_parts(x, w, tiling)

        error = float(
            (linear_parts(x, weights[0], tiling).double().sum(0) - wanted).norm() / wanted.norm()
        )
        assert error < 5e-3, (name, rows, tiling, error)
        results.append((graph_us(ours, copies), str(tiling)))
    results.sort()
    floor = features * width * 2 / 4.3e6
    found |= {"floor": floor, "best": results[:4], "worst": results[-1][0]}
    return found


def sweep_attention() -> list[dict[str, Any]]:
    """Splits and least piece by batch, width and context; 32/8 heads x 128, pages of 256."""
    found = []
    layers, pool = 6, 1100
    kv = torch.randn(2, layers, pool, 8, 256, 128, device="cuda").bfloat16()
    for batch, width, context in itertools.product((1, 8, 32), (1, 8, 16), (640, 8192)):
        pages = -(-(context + width) // 256)
        table = torch.randperm(pool, device="cuda")[: batch * pages].view(batch, pages).int()
        tiles = [(b * width, width, b) for b in range(batch)]
        last = context + 1 + torch.arange(width, device="cuda").repeat(batch)
        queries = Queries(
            tiles=torch.tensor(tiles, dtype=torch.int32, device="cuda"),
            tile_rows=width,
            table=table,
            last=last.int(),
        )
        q = torch.randn(batch * width, 32, 128, device="cuda").bfloat16()
        results = []
        for splits, least in itertools.product((1, 2, 4, 8, 16, 32), (64, 128, 256, 512)):
            if (splits == 1 and least > 64) or batch * 8 * splits > 2048:
                continue

            one = functools.partial(paged_attention, q, queries=queries, splits=splits, least=least)
            results.append((graph_us(lambda f=one: each_layer(f, kv), layers), splits, least))  # type: ignore[misc]
        results.sort()
        moved = batch * (context + width) * 8 * 128 * 4
        row = {"batch": batch, "width": width, "context": context, "best": results[:3]}
        row |= {"tb_s": moved / results[0][0] / 1e6, "one_piece": [r for r in results if r[1] == 1]}
        found.append(row)
        print(json.dumps(row), flush=True)
    return found


def each_layer(attend: Callable[..., Tensor], kv: Tensor) -> None:
    """Attention over every layer of kv [2, layers, ...]."""
    for layer in range(kv.shape[1]):
        attend(kv=(kv[0, layer], kv[1, layer]))


def main() -> None:
    """Times everything, prints a line a case, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    cases = [(n, r, t) for n in SHAPES for r in ROWS for t in tilings(n, r)]
    kinds = {(r, t.columns, t.depth, t.stages, t.warps, t.ahead, t.splits > 1): (n, r, t)
             for n, r, t in cases}  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        pool.map(compile_one, list(kinds.values()), chunksize=2)
    result = {"attention": sweep_attention(), "linear": []}
    for name, rows in itertools.product(SHAPES, ROWS):
        found = sweep_linear(name, rows)
        result["linear"].append(found)
        print(json.dumps(found), flush=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
