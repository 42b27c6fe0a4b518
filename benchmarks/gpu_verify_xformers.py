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

from benchmarks.gpu_verify_attention import Keys, fa3_shapes, inputs
from benchmarks.gpu_verify_checks import relative
from benchmarks.gpu_verify_model import PAGE
from benchmarks.gpu_verify_timing import graph_us
from domino_kernels.gpu.attention import paged_attention


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
    for s, _ in fa3_shapes():
        given = inputs(s)
        ours = partial(paged_attention, splits=given.splits)
        theirs = [
            library(given.q, kv, given.queries.table, s.width, s.context) for kv in given.layers
        ]
        wanted = ours(given.q, given.layers[0], given.queries)
        row = {"heads": f"{s.heads}/{s.kv_heads} x {s.head_dim}", "context": s.context}
        row |= {"batch": s.batch, "width": s.width, "us": given.us(ours)}
        row |= {"apart": relative(theirs[0]().reshape(given.q.shape), wanted)}
        found.append(row | {"xformers_us": graph_us(_all(theirs), len(theirs))})
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
