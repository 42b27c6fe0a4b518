"""Times tilings of the linear layers, or splits and walks of the attention, on one GPU.

What domino_kernels.gpu uses was chosen by these figures. Each time is a graph of calls on rotating
weights (or KV layers) that do not fit the L2 cache, microseconds a call.
"""

import argparse
import contextlib
import functools
import itertools
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from benchmarks.gpu_verify_attention import Shape, inputs
from benchmarks.gpu_verify_timing import graph_us
from domino_kernels.gpu.attention import KeyTiles, Queries, paged_attention
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
WALKS = tuple(
    KeyTiles(keys, stages, warps)
    for keys, stages, warps in itertools.product((32, 64, 128), (2, 3, 4), (4, 8))
)
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


def to_compile(what: str) -> list[tuple[Any, ...]]:
    """One case for every kernel that the sweep of `what` will need."""
    if what == "attention":
        shapes = {(case[:3], case[4]): case for case in attention_cases()}
        return [(case, walk) for case in shapes.values() for walk in WALKS]
    cases = [(n, r, t) for n in SHAPES for r in ROWS for t in tilings(n, r)]
    kinds = {
        (r, t.columns, t.depth, t.stages, t.warps, t.ahead, t.splits > 1): (n, r, t)
        for n, r, t in cases
    }
    return list(kinds.values())


def compile_one(case: tuple[Any, ...]) -> None:
    """Launches a kernel once, so that it is in the cache on disk."""
    if isinstance(case[1], KeyTiles):
        compile_attention(*case)
        return
    name, rows, tiling = case
    features, width = SHAPES[name]
    w = torch.empty(features, width, dtype=torch.bfloat16, device="cuda")
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    linear_parts(x, w, tiling)
    torch.cuda.synchronize()


def compile_attention(case: tuple[int, ...], walk: KeyTiles) -> None:
    """One tile of the case's width, whole and split."""
    heads, kv_heads, dim, _, width, _ = case
    kv = torch.zeros(2, 2, kv_heads, 256, dim, dtype=torch.bfloat16, device="cuda")
    tiles = torch.tensor([[0, width, 0]], dtype=torch.int32, device="cuda")
    table, last = torch.zeros(2, 64, dtype=torch.int32, device="cuda")
    queries = Queries(tiles=tiles, tile_rows=width, table=table[None], last=last)
    q = torch.zeros(width, heads, dim, dtype=torch.bfloat16, device="cuda")
    for splits in (1, 2, 4, 8, 16, 32):
        with contextlib.suppress(OutOfResources):
            paged_attention(q, (kv[0], kv[1]), queries, splits=splits, walk=walk)
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


def attention_cases() -> Iterator[tuple[int, int, int, int, int, int]]:
    """heads, kv heads, head_dim, batch, width, context."""
    for heads, kv_heads, dim in ((32, 8, 128), (12, 2, 256)):
        for batch, width, context in itertools.product((1, 8, 32), (1, 8, 16), (640, 8192)):
            yield heads, kv_heads, dim, batch, width, context


def sweep_attention(case: tuple[int, int, int, int, int, int]) -> dict[str, Any]:
    """Splits and walks over the keys for one shape, the fastest first."""
    heads, kv_heads, dim, batch, width, context = case
    given = inputs(
        Shape(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            batch=batch,
            width=width,
            context=context,
        )
    )
    usual, results = given.splits, []
    for splits, walk in itertools.product({usual, max(1, usual // 2), min(32, usual * 2)}, WALKS):
        try:
            us = given.us(functools.partial(paged_attention, splits=splits, walk=walk))
        except OutOfResources:
            continue
        results.append((us, splits, str(walk)))
    results.sort()
    moved = batch * context * kv_heads * dim * 4
    found: dict[str, Any] = {"case": case, "usual": usual, "best": results[:4]}
    return found | {"tb_s": moved / results[0][0] / 1e6, "all": results}


def main() -> None:
    """Times everything, prints a line a case, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("what", choices=("attention", "linear"))
    options = parser.parse_args()
    result: list[dict[str, Any]] = []
    if options.what == "attention":
        todo = [functools.partial(sweep_attention, case) for case in attention_cases()]
    else:
        todo = [functools.partial(sweep_linear, n, r) for n in SHAPES for r in ROWS]
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        pool.map(compile_one, to_compile(options.what), chunksize=1)
    for one in todo:
        result.append(one())
        print(json.dumps({k: v for k, v in result[-1].items() if k != "all"}), flush=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
