"""Verify attention of xformers' triton_splitk beside our own, on the same queries and keys.

xformers is no dependency: have its folder on PYTHONPATH. Its op is called as it stands, captured in
a graph as ours is; keys lie in its own order (pages by tokens by heads), values are the same.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_verify import FA3
from benchmarks.gpu_verify_checks import relative
from benchmarks.gpu_verify_model import PAGE
from benchmarks.gpu_verify_timing import graph_us
from domino_kernels.gpu.attention import Queries, paged_attention, pieces, tile_rows
from verify_service.gpu_rows import cut

Keys = tuple[Tensor, Tensor]


def library(q: Tensor, kv: Keys, table: Tensor, width: int, context: int) -> Any:
    """What calls xformers: q [n, heads, dim], kv as ours [pages, kv_heads, page, dim]."""
    fmha = import_module("xformers.ops.fmha")
    masks = import_module("xformers.ops.fmha.attn_bias")
    batch, kv_heads = len(table), kv[0].shape[1]
    group, dim = q.shape[1] // kv_heads, q.shape[2]
    bias = masks.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
        q_seqlen=[width] * batch,
        kv_seqlen=[context] * batch,
        kv_padding=table.shape[1] * PAGE,
        device=q.device,
    ).make_paged(table, PAGE, masks.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask)
    keys, values = (
        x.transpose(1, 2).reshape(1, -1, kv_heads, 1, dim).expand(-1, -1, -1, group, -1) for x in kv
    )
    queries = q.view(1, -1, kv_heads, group, dim)
    given = fmha.common.Inputs(query=queries, key=keys, value=values, attn_bias=bias)
    # called directly: the wheel's C++ part, which this op does not use, is another CUDA's
    return partial(_first, partial(fmha.triton_splitk.FwOp.apply, given, needs_gradient=False))


def _first(call: Callable[[], tuple[Tensor, object]]) -> Tensor:
    return call()[0]


@torch.inference_mode()
def compare_attention() -> list[dict[str, Any]]:
    """A row a shape of FA3's table: microseconds of both, how far apart the results are."""
    found: list[dict[str, Any]] = []
    for (heads, kv_heads, dim, context), times in FA3.items():
        for batch, width in times:
            each, layers = -(-context // PAGE), 1 if batch * context > 2**17 else 4
            shape = 2, layers, batch * each, kv_heads, PAGE, dim
            kv = torch.randn(shape, device="cuda").bfloat16()
            table = torch.randperm(batch * each, device="cuda").view(batch, each).int()
            last = context - width + 1 + torch.arange(width, device="cuda").repeat(batch)
            height = tile_rows(width, heads // kv_heads, dim, 2)
            tiles = [tile for b in range(batch) for tile in cut(b * width, width, height, b)]
            queries = Queries(
                tiles=torch.tensor(tiles, dtype=torch.int32, device="cuda"),
                tile_rows=height,
                table=table,
                last=last.int(),
            )
            q = torch.randn(batch * width, heads, dim, device="cuda").bfloat16()
            splits = pieces(len(tiles) * kv_heads, height * heads // kv_heads)
            pairs = list(zip(*kv, strict=True))
            ours = [partial(paged_attention, q, pair, queries, splits=splits) for pair in pairs]
            theirs = [library(q, pair, table, width, context) for pair in pairs]
            apart = relative(theirs[0]().reshape(q.shape), ours[0]())
            row = {"heads": f"{heads}/{kv_heads} x {dim}", "context": context, "batch": batch}
            row |= {"width": width, "apart": apart, "us": graph_us(_all(ours), layers)}
            found.append(row | {"xformers_us": graph_us(_all(theirs), layers)})
            print(found[-1], flush=True)
    faster: list[float] = [row["xformers_us"] / row["us"] for row in found]
    print(f"xformers over ours: median {statistics.median(faster):.2f}, best {min(faster):.2f}")
    return found


def _all(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    def work() -> None:
        for call in calls:
            call()

    return work


def main() -> None:
    """Compares and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    file: Path = parser.parse_args().json
    rows = {"hardware": torch.cuda.get_device_name(), "rows": compare_attention()}
    file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
